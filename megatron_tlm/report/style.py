"""How a page looks, and the little it does: values under the pointer, a search that hides lines."""

# Told apart by colour-blind eyes (Okabe and Ito), and by brightness on paper; the n-th has another tone in the dark.
LIGHT = ("#2f6fb0", "#c8671b", "#3b8a5a", "#a2559a", "#8a7a1f", "#4aa3c7", "#b5484b", "#5c6470")
DARK = ("#7db4ea", "#eda05a", "#7fcb9d", "#d693cd", "#d3c464", "#8fd3ee", "#ee8f91", "#aab2bf")
NUM_COLORS = len(LIGHT)


def _colors(values: tuple[str, ...]) -> str:
    return "".join(f"--c{index}:{value};" for index, value in enumerate(values))


STYLE = f"""
:root{{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#22262b;--quiet:#6a727c;--line:#e4e5e3;--grid:#eeeeec;
--good:#2f7d4f;--warn:#a86a10;--bad:#b23b3b;{_colors(LIGHT)}}}
@media(prefers-color-scheme:dark){{:root{{--bg:#16181b;--card:#1d2024;--ink:#e3e5e8;--quiet:#9aa2ac;--line:#2f343a;
--grid:#282c31;--good:#7fcb9d;--warn:#e3b25f;--bad:#ee8f91;{_colors(DARK)}}}}}
"""
STYLE += """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;
-webkit-font-smoothing:antialiased}
main{max-width:1180px;margin:0 auto;padding:40px 28px 80px}
header{margin-bottom:28px}
h1{font-size:26px;font-weight:600;letter-spacing:-.01em;margin:0;overflow-wrap:anywhere}
header p{color:var(--quiet);margin:6px 0 0}
h2{font-size:17px;font-weight:600;margin:44px 0 12px;letter-spacing:-.005em}
.note{color:var(--quiet);margin:-6px 0 14px;max-width:78ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(168px,1fr));gap:12px}
.tile,figure,.scroll,details,.searchable{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:13px 16px 12px}
.label,.detail{color:var(--quiet);font-size:12.5px;overflow-wrap:anywhere}
.value{font-size:22px;font-weight:550;letter-spacing:-.01em;font-variant-numeric:tabular-nums;margin:2px 0 1px}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:16px}
figure{margin:0;padding:14px 16px 10px;position:relative;min-width:0}
figcaption{font-weight:550;font-size:14px}
figcaption span{color:var(--quiet);font-weight:400}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:12.5px;color:var(--quiet);margin-top:2px}
.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle}
.legend i.dot{width:8px;height:8px;border-radius:50%}
svg{display:block;width:100%;height:auto;overflow:visible;margin-top:6px}
svg.wide{min-width:620px}
figure:has(svg.wide){overflow-x:auto}
svg text{fill:var(--quiet);font-size:11px;font-family:inherit;font-variant-numeric:tabular-nums}
svg .grid{stroke:var(--grid)}
svg .axis{stroke:var(--line)}
svg .curve{fill:none;stroke-width:1.7;stroke-linejoin:round}
svg .faint{stroke-width:1;opacity:.32}
svg .mark{stroke-dasharray:3 3;stroke:var(--quiet);opacity:.75}
svg .mark.bad{stroke:var(--bad)}
svg .tick{stroke:var(--quiet)}
svg .cross{stroke:var(--quiet);opacity:0;pointer-events:none}
.tip{position:absolute;pointer-events:none;background:var(--card);border:1px solid var(--line);border-radius:7px;
padding:6px 10px;font-size:12.5px;box-shadow:0 4px 14px #0002;opacity:0;white-space:nowrap;z-index:2;
font-variant-numeric:tabular-nums}
.tip i{display:inline-block;width:8px;height:8px;border-radius:50%;margin-right:6px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:500;color:var(--quiet);font-size:12.5px;white-space:nowrap}
th,td{padding:7px 14px;border-bottom:1px solid var(--grid);vertical-align:top}
td{overflow-wrap:anywhere}
td.number{white-space:nowrap}
.number{text-align:right}
tbody tr:last-child td{border-bottom:0}
section>*+*,.inside>*+*{margin-top:16px}
section>h2+*{margin-top:0}
section>.note{margin-top:-6px}
details{padding:0}
summary{cursor:pointer;padding:11px 16px;font-weight:500}
details>.searchable,details>.scroll{border:0;border-top:1px solid var(--line);border-radius:0 0 10px 10px}
details>.columns,.inside{padding:0 14px 14px}
.inside h2{margin-top:20px}
.searchable input{width:calc(100% - 24px);margin:12px 12px 0;padding:7px 10px;font:inherit;font-size:13.5px;
color:inherit;background:var(--bg);border:1px solid var(--line);border-radius:7px}
pre{margin:0;padding:12px 16px;overflow-x:auto;max-height:520px;font:12.5px/1.55 ui-monospace,Menlo,Consolas,monospace}
.badge{display:inline-block;padding:1px 9px;border-radius:99px;font-size:12.5px;border:1px solid var(--line)}
.badge.good{color:var(--good);border-color:currentColor}
.badge.warn{color:var(--warn);border-color:currentColor}
.badge.bad{color:var(--bad);border-color:currentColor}
.swatch{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:8px}
@media print{main{max-width:none;padding:0}figure,.tile,tr{break-inside:avoid}}
"""

# A figure with data-chart holds {x: [left, right, first, last], series: [[name, color, xs, ys], ...]}.
SCRIPT = """
const short=v=>v==null?'':Math.abs(v)>=1e5||v&&Math.abs(v)<1e-3?v.toExponential(3):String(+v.toPrecision(5));
for(const figure of document.querySelectorAll('figure[data-chart]')){
const {x:[left,right,first,last],series}=JSON.parse(figure.dataset.chart),svg=figure.querySelector('svg');
const cross=svg.querySelector('.cross'),tip=figure.appendChild(document.createElement('div'));tip.className='tip';
const hide=()=>{tip.style.opacity=cross.style.opacity=0};
svg.addEventListener('pointerleave',hide);
svg.addEventListener('pointermove',event=>{
const box=svg.getBoundingClientRect(),scale=svg.viewBox.baseVal.width/box.width;
const at=(event.clientX-box.left)*scale;if(at<left||at>right)return hide();
const wanted=first+(at-left)/(right-left)*(last-first);let near=null;const rows=[];
for(const [name,color,xs,ys] of series){let low=0,high=xs.length-1;if(high<0)continue;
while(high-low>1){const middle=low+high>>1;if(xs[middle]<wanted)low=middle;else high=middle}
const k=wanted-xs[low]<xs[high]-wanted?low:high;
rows.push([name,color,ys[k],xs[k]]);if(near===null||Math.abs(xs[k]-wanted)<Math.abs(near-wanted))near=xs[k]}
tip.textContent='';tip.append(figure.dataset.x+' '+short(near));
for(const [name,color,y,x] of rows){const line=tip.appendChild(document.createElement('div'));
const dot=line.appendChild(document.createElement('i'));dot.style.background=color;
line.append(name+'  '+short(y)+(x===near?'':'  ('+short(x)+')'))}
const place=left+(near-first)/(last-first||1)*(right-left);
cross.setAttribute('x1',place);cross.setAttribute('x2',place);
const spot=event.clientX-figure.getBoundingClientRect().left,over=spot>figure.clientWidth/2;
tip.style.left=over?'':spot+16+'px';tip.style.right=over?figure.clientWidth-spot+16+'px':'';
tip.style.top=box.top-figure.getBoundingClientRect().top+8+'px';tip.style.opacity=1;cross.style.opacity=.7})}
for(const part of document.querySelectorAll('.searchable')){
const lines=[...part.querySelectorAll('pre span')];
part.querySelector('input').addEventListener('input',event=>{const wanted=event.target.value.toLowerCase();
for(const line of lines)line.hidden=!line.textContent.toLowerCase().includes(wanted)})}
"""
