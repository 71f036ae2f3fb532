'use strict';
(() => {
  const colours = ['#0072b2', '#e69f00', '#009e73', '#8cc6f0', '#cc79a7', '#777777', '#f0e442', '#d55e00'];
  const size = b => { const u = ['B', 'KiB', 'MiB', 'GiB', 'TiB']; let i = 0; while (b >= 1024 && i < 4) { b /= 1024; i++; } return (i ? b.toPrecision(4) : b) + ' ' + u[i]; };
  const count = (k, one) => k + ' ' + one + (k === 1 ? '' : 's');
  const el = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const setup = (c, W, H) => { const r = devicePixelRatio || 1; c.width = W * r; c.height = H * r; const g = c.getContext('2d'); g.setTransform(r, 0, 0, r, 0, 0); g.clearRect(0, 0, W, H); g.font = '12px system-ui,sans-serif'; return g; };
  let printing = false; // on paper, which is white
  const night = () => dark.matches && !printing;
  let scale = 0; // the highest level of all steps of the page, which share the axis

  // read returns the levels and the tensors of a step.
  function read(D) {
    const n = D.events.length + 1, K = D.categories.length, places = D.places || [];
    // Levels: live bytes by category after each event; point 0 is the start.
    const level = new Float64Array(n * K), total = new Float64Array(n), now = new Float64Array(K);
    const born = new Map(), spans = []; // of every tensor: [storage, from, to, place), by birth
    let placed = 0;
    const put = i => { let s = 0; for (let k = 0; k < K; k++) { level[i * K + k] = now[k]; s += now[k]; } total[i] = s; };
    const bear = (st, i) => { const t = [st, i, n, places[placed++] ?? -1]; born.set(st, t); spans.push(t); };
    for (const id of D.before) { now[D.storages[id][1]] += D.storages[id][0]; bear(id, 0); }
    put(0);
    D.events.forEach(([, id], i) => {
      const st = Math.abs(id) - 1, [bytes, k] = D.storages[st];
      now[k] += id < 0 ? -bytes : bytes;
      if (id > 0) bear(st, i + 1); else if (born.has(st)) { born.get(st)[2] = i + 1; born.delete(st); }
      put(i + 1);
    });
    let peak = 0;
    for (let i = 1; i < n; i++) if (total[i] > total[peak]) peak = i;
    let highest = total[peak];
    for (const l of D.lines) if (l.bytes < 1.6 * total[peak]) highest = Math.max(highest, l.bytes);
    scale = Math.max(scale, highest * 1.04 || 1);
    return {n, K, level, total, spans, peak};
  }

  function view(id, D, {n, K, level, total, spans, peak}) {
    const $ = name => document.getElementById(id + '-' + name), S = D.strings;
    const marks = []; // where phases begin
    D.events.forEach(([node], i) => { const name = D.phases[D.nodes[node][0]]; if (!marks.length || marks[marks.length - 1][1] !== name) marks.push([i, name]); });
    const canvas = $('canvas'), over = $('over'), tip = $('tip');
    let from = 0, to = n, at = peak, hover = -1, chosen = null, W = 0, H = 0;
    const left = 62, right = 8, top = 12, bottom = 20;
    const x = i => left + (i - from) / Math.max(to - from, 1) * (W - left - right);
    const index = px => Math.max(0, Math.min(n - 1, Math.floor(from + (px - left) / Math.max(W - left - right, 1) * (to - from))));
    const y = b => top + (1 - b / scale) * (H - top - bottom);

    function axis(g) { // round binary sizes, four to eight of them
      let step = 1; while (scale / step > 8) step *= 2;
      g.textAlign = 'right';
      for (let v = 0; v <= scale; v += step) { g.globalAlpha = .18; g.fillRect(left, Math.round(y(v)), W - left - right, 1); g.globalAlpha = 1; g.fillText(v ? size(v).replace(/\.?0+ /, ' ') : '0', left - 6, y(v) + 4); }
      g.textAlign = 'left';
    }
    function areas(g) {
      const columns = Math.max(1, Math.min(Math.floor(W - left - right), to - from));
      for (let c = 0; c < columns; c++) { // of the events in a column the highest
        const a = from + Math.floor(c * (to - from) / columns), b = Math.max(a + 1, from + Math.floor((c + 1) * (to - from) / columns));
        let best = a; for (let i = a + 1; i < b; i++) if (total[i] > total[best]) best = i;
        const px = x(a), w = Math.max(x(b) - px, 1) + .3; let sum = 0;
        for (let k = 0; k < K; k++) { const v = level[best * K + k]; if (!v) continue; g.fillStyle = colours[k % colours.length]; const y1 = y(sum + v); g.fillRect(px, y1, Math.min(w, W - right - px), y(sum) - y1 + .3); sum += v; }
      }
    }
    function draw() {
      W = canvas.clientWidth; H = canvas.clientHeight;
      const g = setup(canvas, W, H), ink = night() ? '#ddd' : '#222';
      g.fillStyle = ink; axis(g); areas(g);
      g.fillStyle = g.strokeStyle = ink;
      marks.forEach(([i, name], j) => { // phases; a name stands where it has room
        if (i >= from && i < to) { g.globalAlpha = .5; g.fillRect(x(i), top, 1, H - top); g.globalAlpha = 1; }
        const a = Math.max(x(i), left) + 4, b = Math.min(j + 1 < marks.length ? x(marks[j + 1][0]) : W, W - right);
        if (b - a > g.measureText(name).width) g.fillText(name, a, H - 6);
      });
      let last = -99;
      for (const l of [...D.lines].sort((a, b) => b.bytes - a.bytes)) {
        const yy = y(l.bytes); if (yy < 0) continue;
        g.setLineDash([6, 4]); g.beginPath(); g.moveTo(left, yy); g.lineTo(W - right, yy); g.stroke(); g.setLineDash([]);
        const ty = Math.max(yy + 13, last + 13); last = ty; g.fillText(l.name + ' ' + size(l.bytes), left + 4, ty);
      }
      if (peak >= from && peak < to) { const px = x(peak), py = y(total[peak]); g.beginPath(); g.moveTo(px, py); g.lineTo(px - 5, py - 8); g.lineTo(px + 5, py - 8); g.fill(); }
      mark();
    }
    function mark() {
      const g = setup(over, W, H); g.strokeStyle = g.fillStyle = night() ? '#fff' : '#000';
      for (const [i, dash] of [[at, []], [hover, [2, 3]]]) { if (i < from || i >= to || i < 0) continue; g.setLineDash(dash); g.beginPath(); g.moveTo(x(i) + .5, top); g.lineTo(x(i) + .5, H - bottom); g.stroke(); }
      if (chosen && chosen[2] > from && chosen[1] < to) { const a = Math.max(x(chosen[1]), left); g.fillRect(a, 2, Math.max(Math.min(x(chosen[2]), W - right) - a, 2), 5); } // its life
    }

    const where = i => { if (i === 0) return 'start of the step'; const [node, e] = D.events[i - 1], [p, op, call, mod] = D.nodes[node], [bytes,, name] = D.storages[Math.abs(e) - 1]; return `${D.phases[p]}: ${S[op]}${S[call] ? ' (' + S[call] + ')' : ''}${S[mod] ? ', ' + S[mod] : ''}; ${e < 0 ? 'frees' : 'allocates'} ${size(bytes)}${S[name] ? ' ' + S[name] : ''}`; };
    const by = i => S[D.nodes[D.events[i - 1][0]][1]] + ' (' + i + ')';
    const madeBy = t => t[1] === 0 ? 'before the step' : by(t[1]), freedBy = t => t[2] >= n ? 'stays' : by(t[2]);
    const live = i => spans.filter(t => t[1] <= i && i < t[2]);
    const told = t => { const [bytes, k, name, mod, type, saved] = D.storages[t[0]]; return {t, bytes, k, name: S[name], mod: S[mod], type: S[type] || '', saved: S[saved] || '', made: madeBy(t), gone: freedBy(t)}; };
    const words = r => [(r.name || '(unnamed)') + ', ' + D.categories[r.k], size(r.bytes) + (r.type ? ' ' + r.type : ''), r.mod, 'made by ' + r.made, 'freed by ' + r.gone, r.saved && 'saved for ' + r.saved].filter(Boolean);
    // under returns the tensor at a height after event i: the oldest of a category lie lowest.
    const under = (i, py) => {
      let b = (1 - (py - top) / (H - top - bottom)) * scale, k = 0;
      for (; k < K && b >= level[i * K + k]; k++) b -= level[i * K + k];
      if (k === K || b < 0) return null;
      for (const t of spans) { if (t[1] > i) break; if (i < t[2] && D.storages[t[0]][1] === k && (b -= D.storages[t[0]][0]) < 0) return t; }
      return null;
    };

    let rows = [];
    function select(i, t) {
      at = Math.max(0, Math.min(n - 1, i)); chosen = t || null;
      $('where').textContent = `event ${at} of ${n - 1}${at === peak ? ', the peak' : ''}: ${size(total[at])} live; ${where(at)}`;
      $('tensor').textContent = chosen ? words(told(chosen)).join('; ') : 'none chosen: click one, in the chart, in a segment or in the table';
      rows = live(at).map(told).sort((p, q) => q.bytes - p.bytes);
      list(); tree(); mark(); segments();
    }
    function list() {
      const asked = $('search').value.toLowerCase().split(/\s+/).filter(Boolean);
      const all = asked.length ? spans.map(told).sort((p, q) => q.bytes - p.bytes) : rows;
      const hit = all.filter(r => { const t = [r.name, r.mod, r.type, r.made, r.gone, r.saved, D.categories[r.k]].join(' ').toLowerCase(); return asked.every(w => t.includes(w)); });
      $('live').replaceChildren(...hit.slice(0, 200).map(r => {
        const tr = el('tr');
        for (const [text, cls] of [[size(r.bytes), 'n'], [D.categories[r.k]], [r.name], [r.type], [r.mod], [r.made], [r.gone], [r.saved]]) tr.append(el('td', text, cls));
        tr.firstChild.style.borderLeft = '.35rem solid ' + colours[r.k % colours.length]; tr.tabIndex = 0;
        tr.onclick = () => show(r.t); tr.onkeydown = e => { if (e.key === 'Enter') show(r.t); };
        return tr;
      }));
      $('count').textContent = `${count(hit.length, 'tensor')}${asked.length ? ' of the step' : ' live there'}, ${size(hit.reduce((s, r) => s + r.bytes, 0))}` + (hit.length > 200 ? '; the largest 200 are shown' : '');
    }
    const show = t => { select(t[1], t); if (at < from || at >= to) { const w = to - from; range(at - w / 2, at + w / 2); } };
    function tree() {
      const root = {bytes: 0, kids: new Map()};
      for (const r of rows) { let t = root; t.bytes += r.bytes; for (const part of r.mod ? r.mod.split('.') : ['(model)']) { if (!t.kids.has(part)) t.kids.set(part, {bytes: 0, kids: new Map()}); t = t.kids.get(part); t.bytes += r.bytes; } }
      const checkpoints = new Set(D.checkpoints);
      const branch = (t, path, open) => [...t.kids].sort((a, b) => b[1].bytes - a[1].bytes).map(([part, kid], i) => {
        const name = path ? path + '.' + part : part, d = el(kid.kids.size ? 'details' : 'div'), s = el(kid.kids.size ? 'summary' : 'span');
        s.append(el('b', size(kid.bytes)), ' ' + part + (checkpoints.has(name) ? ' (checkpointed)' : ''));
        const bar = el('i'); bar.style.width = 100 * kid.bytes / Math.max(root.bytes, 1) + '%'; s.append(bar); d.append(s);
        const fill = o => { if (d.children.length === 1) d.append(...branch(kid, name, o)); };
        if (kid.kids.size && open > 0 && i === 0) { fill(open - 1); d.open = true; }
        if (kid.kids.size) d.ontoggle = () => { if (d.open) fill(0); };
        return d;
      });
      $('tree').replaceChildren(...branch(root, '', 2));
    }

    // The segments of the allocator, laid out in lines of equal length.
    const ground = $('segments'), line = 18, bar = 14;
    let pieces = [], live3 = []; // pieces: [row, x, width, first byte, bytes]; live tensors by place
    function segments() {
      const sizes = D.segments || [], all = sizes.reduce((s, g) => s + g[0], 0);
      $('ground').hidden = !all; if (!all) return;
      const width = ground.parentNode.clientWidth, lines = width < 600 ? 22 : 16, gap = 2, pixel = all / Math.max((width - sizes.length * gap / lines) * lines * .97, 1);
      pieces = []; let row = 0, px = 0, byte = 0;
      for (const [bytes] of sizes) {
        for (let rest = bytes; rest > 0;) {
          if (width - px < 2) { row++; px = 0; }
          const part = Math.min(rest, (width - px) * pixel);
          pieces.push([row, px, part / pixel, byte, part]); px += part / pixel; byte += part; rest -= part;
        }
        px += gap;
      }
      ground.style.height = (row + 1) * line + 'px';
      const g = setup(ground, width, (row + 1) * line);
      g.fillStyle = night() ? '#444' : '#ddd';
      for (const [r, a, w] of pieces) g.fillRect(a, r * line, w, bar);
      live3 = live(at).filter(t => t[3] >= 0).sort((p, q) => p[3] - q[3]);
      for (const t of live3) block(g, t, colours[D.storages[t[0]][1] % colours.length], false);
      if (chosen && live3.includes(chosen)) block(g, chosen, night() ? '#fff' : '#000', true);
      fragments(sizes, all);
    }
    function block(g, t, colour, outline) { // on all its pieces
      const a = t[3], b = a + D.storages[t[0]][0]; g.fillStyle = g.strokeStyle = colour; g.lineWidth = 2;
      let lo = 0, hi = pieces.length; while (lo < hi) { const m = lo + hi >> 1; if (pieces[m][3] + pieces[m][4] <= a) lo = m + 1; else hi = m; }
      for (; lo < pieces.length && pieces[lo][3] < b; lo++) {
        const [r, px, w, first, bytes] = pieces[lo], s = Math.max(a, first), e = Math.min(b, first + bytes), q = px + (s - first) / bytes * w, v = (e - s) / bytes * w;
        if (outline) g.strokeRect(q + 1, r * line + 1, Math.max(v - 2, 1), bar - 2); else g.fillRect(q, r * line, Math.max(v - (v > 3 ? .7 : 0), .3), bar);
      }
    }
    function fragments(sizes, all) { // what is not in use, by segment
      let used = 0, largest = 0, idle = 0, i = 0, start = 0;
      for (const [bytes] of sizes) {
        let end = start; const before = i;
        for (; i < live3.length && live3[i][3] < start + bytes; i++) { const b = D.storages[live3[i][0]][0]; largest = Math.max(largest, live3[i][3] - end); end = live3[i][3] + Math.ceil(b / 512) * 512; used += b; }
        largest = Math.max(largest, start + bytes - end); start += bytes; if (i === before) idle++;
      }
      $('fragments').textContent = `${count(sizes.length, 'segment')}, ${size(all)} reserved: ${size(used)} in use at event ${at}, ${size(all - used)} not (grey); the largest gap has ${size(largest)}; ${count(idle, 'segment')} empty.`;
    }
    const at3 = e => { const r = Math.floor(e.offsetY / line), p = pieces.find(p => p[0] === r && p[1] <= e.offsetX && e.offsetX < p[1] + p[2]); if (!p) return null; const b = p[3] + (e.offsetX - p[1]) / p[2] * p[4]; return live3.find(t => t[3] <= b && b < t[3] + D.storages[t[0]][0]) || null; };
    ground.addEventListener('pointermove', e => { const t = at3(e); $('block').textContent = t ? words(told(t)).join('; ') : 'not in use'; });
    ground.addEventListener('click', e => { const t = at3(e); if (t) select(at, t); });

    const range = (a, b) => { const w = Math.max(8, Math.min(n, Math.round(b - a))); from = Math.max(0, Math.min(n - w, Math.round(a))); to = Math.min(n, from + w); draw(); };
    const zoom = (f, i) => range(i - (i - from) * f, i + (to - i) * f);
    const pan = d => range(from + d, to + d);
    over.addEventListener('wheel', e => { e.preventDefault(); if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan((e.deltaX || e.deltaY) / W * (to - from)); else zoom(e.deltaY > 0 ? 1.25 : .8, index(e.offsetX)); }, {passive: false});
    let grab = null;
    over.addEventListener('pointerdown', e => { grab = {x: e.offsetX, from, to, moved: false}; over.setPointerCapture(e.pointerId); });
    over.addEventListener('pointermove', e => {
      if (grab && Math.abs(e.offsetX - grab.x) > 3) { grab.moved = true; const d = (grab.x - e.offsetX) / W * (grab.to - grab.from); range(grab.from + d, grab.to + d); return; }
      hover = index(e.offsetX); tip.hidden = false;
      const t = under(hover, e.offsetY), parts = D.categories.map((c, k) => [level[hover * K + k], c]).filter(p => p[0]).sort((a, b) => b[0] - a[0]).map(p => p[1] + ' ' + size(p[0]));
      tip.textContent = `${size(total[hover])} at event ${hover}: ${parts.join(', ')}\n${where(hover)}` + (t ? '\nunder the pointer: ' + words(told(t)).join('; ') : '');
      tip.style.left = e.offsetX > W / 2 ? 'auto' : e.offsetX + 12 + 'px'; tip.style.right = e.offsetX > W / 2 ? W - e.offsetX + 12 + 'px' : 'auto'; mark();
    });
    over.addEventListener('pointerup', e => { if (grab && !grab.moved) { const i = index(e.offsetX); select(i, under(i, e.offsetY)); } grab = null; });
    over.addEventListener('pointercancel', () => { grab = null; });
    over.addEventListener('pointerleave', () => { hover = -1; tip.hidden = true; mark(); });
    over.addEventListener('keydown', e => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const w = to - from, keys = {ArrowLeft: () => select(at - (e.shiftKey ? Math.ceil(w / 20) : 1)), ArrowRight: () => select(at + (e.shiftKey ? Math.ceil(w / 20) : 1)), '+': () => zoom(.7, at), '=': () => zoom(.7, at), '-': () => zoom(1.4, at), '0': () => range(0, n), p: () => { select(peak); }, Home: () => select(0), End: () => select(n - 1)};
      if (keys[e.key]) { e.preventDefault(); keys[e.key](); if (at < from || at >= to) range(at - w / 2, at + w / 2); }
    });
    $('in').onclick = () => zoom(.6, at); $('out').onclick = () => zoom(1.7, at); $('all').onclick = () => range(0, n); $('peak').onclick = () => { select(peak); if (peak < from || peak >= to) range(0, n); };
    $('search').oninput = list;
    D.categories.forEach((c, k) => { let any = false; for (let i = 0; i < n && !any; i++) any = level[i * K + k] > 0; if (!any) return; const s = el('span', c), b = el('i'); b.style.background = colours[k % colours.length]; s.prepend(b); $('legend').append(s); });
    document.getElementById(id).hidden = false;
    const again = () => { draw(); segments(); };
    for (const [what, on] of [['beforeprint', true], ['afterprint', false]]) addEventListener(what, () => { printing = on; again(); });
    addEventListener('resize', again); dark.addEventListener('change', again);
    draw(); select(peak);
  }

  const steps = ['step', 'base', 'head'].filter(id => document.getElementById(id)).map(id => { const D = JSON.parse(document.getElementById(id + '-data').textContent); return [id, D, read(D)]; });
  for (const s of steps) view(...s);
  const drawn = document.getElementById('step-static'); if (drawn && steps.length) drawn.hidden = true;
})();
