'use strict';
(() => {
  const $ = id => document.getElementById(id), D = JSON.parse($('step-data').textContent), S = D.strings;
  const colours = ['#0072b2', '#e69f00', '#009e73', '#8cc6f0', '#cc79a7', '#777777', '#f0e442', '#d55e00'];
  const n = D.events.length + 1, K = D.categories.length;
  // Levels: live bytes by category after each event; point 0 is the start.
  const level = new Float64Array(n * K), total = new Float64Array(n), now = new Float64Array(K);
  for (const id of D.before) now[D.storages[id][1]] += D.storages[id][0];
  const born = new Map(), spans = []; // of every storage: [storage, from, to)
  for (const id of D.before) born.set(id, 0);
  const put = i => { let s = 0; for (let k = 0; k < K; k++) { level[i * K + k] = now[k]; s += now[k]; } total[i] = s; };
  put(0);
  D.events.forEach(([, id], i) => {
    const free = id < 0, st = Math.abs(id) - 1, [bytes, k] = D.storages[st];
    now[k] += free ? -bytes : bytes;
    if (free) { spans.push([st, born.get(st) ?? 0, i + 1]); born.delete(st); } else born.set(st, i + 1);
    put(i + 1);
  });
  for (const [st, from] of born) spans.push([st, from, n]);
  let peak = 0;
  for (let i = 1; i < n; i++) if (total[i] > total[peak]) peak = i;

  const marks = []; // where phases begin
  D.events.forEach(([node], i) => { const name = D.phases[D.nodes[node][0]]; if (!marks.length || marks[marks.length - 1][1] !== name) marks.push([i, name]); });

  const size = b => { const u = ['B', 'KiB', 'MiB', 'GiB', 'TiB']; let i = 0; while (b >= 1024 && i < 4) { b /= 1024; i++; } return (i ? b.toPrecision(4) : b) + ' ' + u[i]; };
  const el = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
  const row = cells => { const tr = el('tr'); for (const [text, cls] of cells) tr.append(el('td', text, cls)); return tr; };

  const canvas = $('step-canvas'), over = $('step-over'), tip = $('step-tip');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  let from = 0, to = n, at = peak, hover = -1, W = 0, H = 0;
  const left = 8, top = 8, bottom = 20;
  const x = i => left + (i - from) / Math.max(to - from, 1) * (W - 2 * left);
  const index = px => Math.max(0, Math.min(n - 1, Math.floor(from + (px - left) / Math.max(W - 2 * left, 1) * (to - from))));
  const highest = () => { let m = total[peak]; for (const l of D.lines) if (l.bytes < 1.6 * total[peak]) m = Math.max(m, l.bytes); return m * 1.04 || 1; };
  const y = b => top + (1 - b / highest()) * (H - top - bottom);

  const setup = c => { const r = devicePixelRatio || 1; c.width = W * r; c.height = H * r; const g = c.getContext('2d'); g.setTransform(r, 0, 0, r, 0, 0); g.clearRect(0, 0, W, H); g.font = '12px system-ui,sans-serif'; return g; };
  function draw() {
    W = canvas.clientWidth; H = canvas.clientHeight;
    const g = setup(canvas), ink = dark.matches ? '#ddd' : '#222', columns = Math.max(1, Math.min(W - 2 * left, to - from));
    for (let c = 0; c < columns; c++) { // of the events in a column the highest
      const a = from + Math.floor(c * (to - from) / columns), b = Math.max(a + 1, from + Math.floor((c + 1) * (to - from) / columns));
      let best = a; for (let i = a + 1; i < b; i++) if (total[i] > total[best]) best = i;
      const px = x(a), w = Math.max(x(b) - px, 1) + 0.3; let sum = 0;
      for (let k = 0; k < K; k++) { const v = level[best * K + k]; if (!v) continue; g.fillStyle = colours[k % colours.length]; const y1 = y(sum + v); g.fillRect(px, y1, w, y(sum) - y1 + 0.3); sum += v; }
    }
    g.fillStyle = g.strokeStyle = ink;
    marks.forEach(([i, name], j) => { // phases; a name stands where it has room
      if (i >= from && i < to) { g.globalAlpha = .5; g.fillRect(x(i), top, 1, H - top); g.globalAlpha = 1; }
      const a = Math.max(x(i), left) + 4, b = Math.min(j + 1 < marks.length ? x(marks[j + 1][0]) : W, W - left);
      if (b - a > g.measureText(name).width) g.fillText(name, a, H - 6);
    });
    for (const l of D.lines) { const yy = y(l.bytes); if (yy < 0) continue; g.setLineDash([6, 4]); g.beginPath(); g.moveTo(left, yy); g.lineTo(W - left, yy); g.stroke(); g.setLineDash([]); g.fillText(l.name + ' ' + size(l.bytes), left + 4, yy + 13); }
    if (peak >= from && peak < to) { g.beginPath(); g.moveTo(x(peak), y(total[peak])); g.lineTo(x(peak) - 5, y(total[peak]) - 8); g.lineTo(x(peak) + 5, y(total[peak]) - 8); g.fill(); }
    mark();
  }
  function mark() {
    const g = setup(over); g.strokeStyle = dark.matches ? '#fff' : '#000';
    for (const [i, dash] of [[at, []], [hover, [2, 3]]]) { if (i < from || i >= to || i < 0) continue; g.setLineDash(dash); g.beginPath(); g.moveTo(x(i) + .5, top); g.lineTo(x(i) + .5, H - bottom); g.stroke(); }
  }
  const where = i => { if (i === 0) return 'start of the step'; const [node, id] = D.events[i - 1], [p, op, call, mod] = D.nodes[node], [bytes,, name] = D.storages[Math.abs(id) - 1]; return `${D.phases[p]}: ${S[op]}${S[call] ? ' (' + S[call] + ')' : ''}${S[mod] ? ', ' + S[mod] : ''}; ${id < 0 ? 'frees' : 'allocates'} ${size(bytes)}${S[name] ? ' ' + S[name] : ''}`; };
  const madeBy = i => i === 0 ? 'before the step' : S[D.nodes[D.events[i - 1][0]][1]] + ' (' + i + ')';

  let rows = [];
  function select(i) {
    at = Math.max(0, Math.min(n - 1, i));
    $('step-where').textContent = `event ${at} of ${n - 1}${at === peak ? ', the peak' : ''}: ${size(total[at])} live; ${where(at)}`;
    const live = spans.filter(([, a, b]) => a <= at && at < b);
    rows = live.map(([st, a, b]) => { const [bytes, k, name, mod] = D.storages[st]; return {bytes, k, name: S[name], mod: S[mod], made: madeBy(a), gone: b >= n ? 'stays' : S[D.nodes[D.events[b - 1][0]][1]] + ' (' + b + ')', a}; }).sort((p, q) => q.bytes - p.bytes);
    list(); tree(); mark();
  }
  function list() {
    const words = $('step-search').value.toLowerCase().split(/\s+/).filter(Boolean), body = $('step-live');
    const hit = rows.filter(r => { const t = (r.name + ' ' + r.mod + ' ' + r.made + ' ' + D.categories[r.k]).toLowerCase(); return words.every(w => t.includes(w)); });
    body.replaceChildren(...hit.slice(0, 200).map(r => { const tr = row([[size(r.bytes), 'n'], [D.categories[r.k]], [r.name], [r.mod], [r.made], [r.gone]]); tr.firstChild.style.borderLeft = '.35rem solid ' + colours[r.k % colours.length]; tr.tabIndex = 0; tr.onclick = () => select(r.a); tr.onkeydown = e => { if (e.key === 'Enter') select(r.a); }; return tr; }));
    $('step-count').textContent = `${hit.length} tensors, ${size(hit.reduce((s, r) => s + r.bytes, 0))}` + (hit.length > 200 ? '; the largest 200 are shown' : '');
  }
  function tree() {
    const root = {bytes: 0, kids: new Map()};
    for (const r of rows) { let t = root; t.bytes += r.bytes; for (const part of r.mod ? r.mod.split('.') : ['(model)']) { if (!t.kids.has(part)) t.kids.set(part, {bytes: 0, kids: new Map()}); t = t.kids.get(part); t.bytes += r.bytes; } }
    const checkpoints = new Set(D.checkpoints);
    const show = (t, path) => [...t.kids].sort((a, b) => b[1].bytes - a[1].bytes).map(([part, kid]) => {
      const name = path ? path + '.' + part : part, d = el(kid.kids.size ? 'details' : 'div'), s = el(kid.kids.size ? 'summary' : 'span');
      s.append(el('b', size(kid.bytes)), ' ' + part + (checkpoints.has(name) ? ' (checkpointed)' : ''));
      const bar = el('i'); bar.style.width = 100 * kid.bytes / Math.max(root.bytes, 1) + '%'; s.append(bar); d.append(s);
      if (kid.kids.size) d.ontoggle = () => { if (d.open && d.children.length === 1) d.append(...show(kid, name)); };
      return d;
    });
    $('step-tree').replaceChildren(...show(root, ''));
  }

  const range = (a, b) => { const w = Math.max(8, Math.min(n, Math.round(b - a))); from = Math.max(0, Math.min(n - w, Math.round(a))); to = from + w; draw(); };
  const zoom = (f, i) => range(i - (i - from) * f, i + (to - i) * f);
  const pan = d => range(from + d, to + d);
  over.addEventListener('wheel', e => { e.preventDefault(); if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan((e.deltaX || e.deltaY) / W * (to - from)); else zoom(e.deltaY > 0 ? 1.25 : .8, index(e.offsetX)); }, {passive: false});
  let grab = null;
  over.addEventListener('pointerdown', e => { grab = {x: e.offsetX, from, to, moved: false}; over.setPointerCapture(e.pointerId); });
  over.addEventListener('pointermove', e => {
    if (grab && Math.abs(e.offsetX - grab.x) > 3) { grab.moved = true; const d = (grab.x - e.offsetX) / W * (grab.to - grab.from); range(grab.from + d, grab.to + d); return; }
    hover = index(e.offsetX); tip.hidden = false;
    const parts = D.categories.map((c, k) => [level[hover * K + k], c]).filter(p => p[0]).sort((a, b) => b[0] - a[0]).map(p => p[1] + ' ' + size(p[0]));
    tip.textContent = `${size(total[hover])} at event ${hover}; ${where(hover)}; ${parts.join(', ')}`;
    tip.style.left = Math.min(e.offsetX + 12, Math.max(W - 300, 0)) + 'px'; mark();
  });
  over.addEventListener('pointerup', e => { if (grab && !grab.moved) select(index(e.offsetX)); grab = null; });
  over.addEventListener('pointerleave', () => { hover = -1; tip.hidden = true; mark(); });
  over.addEventListener('keydown', e => {
    const w = to - from, keys = {ArrowLeft: () => select(at - (e.shiftKey ? Math.ceil(w / 20) : 1)), ArrowRight: () => select(at + (e.shiftKey ? Math.ceil(w / 20) : 1)), '+': () => zoom(.7, at), '=': () => zoom(.7, at), '-': () => zoom(1.4, at), '0': () => range(0, n), p: () => { select(peak); }, Home: () => select(0), End: () => select(n - 1)};
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); if (at < from || at >= to) range(at - w / 2, at + w / 2); }
  });
  $('step-in').onclick = () => zoom(.6, at); $('step-out').onclick = () => zoom(1.7, at); $('step-all').onclick = () => range(0, n); $('step-peak').onclick = () => { select(peak); if (peak < from || peak >= to) range(0, n); };
  $('step-search').oninput = list;
  D.categories.forEach((c, k) => { let any = false; for (let i = 0; i < n && !any; i++) any = level[i * K + k] > 0; if (!any) return; const s = el('span', c); const b = el('i'); b.style.background = colours[k % colours.length]; s.prepend(b); $('step-legend').append(s); });
  $('step').hidden = false; if ($('step-static')) $('step-static').hidden = true;
  addEventListener('resize', draw); dark.addEventListener('change', draw);
  draw(); select(peak);
})();
