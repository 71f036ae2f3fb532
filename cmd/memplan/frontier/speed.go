package frontier

import (
	"cmp"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/memplan/memplan/planner"
)

// Colours of Okabe and Ito, which colour-blind readers tell apart; marks and dashes differ, too.
var (
	chosenColor  = color.RGBA{0x00, 0x00, 0x00, 0xff}
	largestColor = color.RGBA{0xcc, 0x79, 0xa7, 0xff}
	cardColor    = color.RGBA{0x55, 0x55, 0x55, 0xff}
)

const gib = 1 << 30

// newPlot makes a plot with its axes' titles.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, st := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		st.Font.Variant = "Sans"
	}
	// Texts to the right of their marks: browsers' fonts are wider than those measured here.
	p.Legend.Padding, p.Legend.Left, p.Legend.XOffs = vg.Points(2), true, width*2/5
	return p
}

// A series is what one entry of a legend names.
type series struct {
	name   string
	at     plotter.XYs
	color  color.Color
	mark   draw.GlyphDrawer // nil: none
	line   bool
	dashes []vg.Length
	steps  plotter.StepKind
}

// add draws a series, if it has points.
func (s series) add(p *plot.Plot) error {
	if len(s.at) == 0 {
		return nil
	}
	var thumbs []plot.Thumbnailer
	if s.line {
		l, err := plotter.NewLine(s.at)
		if err != nil {
			return err
		}
		l.Color, l.Width, l.Dashes, l.StepStyle = s.color, vg.Points(1.5), s.dashes, s.steps
		p.Add(l)
		thumbs = append(thumbs, l)
	}
	if s.mark != nil {
		m, err := plotter.NewScatter(s.at)
		if err != nil {
			return err
		}
		m.GlyphStyle = draw.GlyphStyle{Color: s.color, Radius: vg.Points(3.5), Shape: s.mark}
		p.Add(m)
		thumbs = append(thumbs, m)
	}
	p.Legend.Add(s.name, thumbs...)
	return nil
}

var dashed = []vg.Length{vg.Points(5), vg.Points(3)}

// Batches draws samples per second and memory over the batch of a report with --batch best,
// as an SVG document.
func Batches(w io.Writer, r *planner.Report) error {
	speed, err := speeds(r)
	if err != nil {
		return err
	}
	memory, err := memories(r)
	if err != nil {
		return err
	}
	memory.X.Min, memory.X.Max = speed.X.Min, speed.X.Max
	c := vgsvg.New(width, 3*height/2)
	rows := [][]*plot.Plot{{speed}, {memory}}
	for i, row := range plot.Align(rows, draw.Tiles{Rows: 2, Cols: 1, PadY: vg.Points(8), PadTop: vg.Points(4), PadRight: vg.Points(12)}, draw.New(c)) {
		rows[i][0].Draw(row[0])
	}
	_, err = c.WriteTo(w)
	return err
}

// speeds is the upper part: samples per second over the batch.
func speeds(r *planner.Report) (*plot.Plot, error) {
	b, p := r.Batch.Best, newPlot("", "samples per second")
	var plain, bounds, largest plotter.XYs
	for _, x := range b.Points {
		at := float64(x.Batch)
		switch {
		case x.Fits:
			plain = append(plain, plotter.XY{X: at, Y: x.SamplesPerSecond})
		case x.Bound > 0:
			bounds = append(bounds, plotter.XY{X: at, Y: x.Bound})
		}
	}
	if x := b.Largest; x != nil {
		largest = plotter.XYs{{X: float64(x.Batch), Y: x.SamplesPerSecond}}
	}
	if n := len(plain); n > 0 && len(bounds) > 0 {
		bounds = slices.Insert(bounds, 0, plain[n-1])
	}
	p.Y.Min = 0
	for _, s := range []series{
		{name: "fits as asked", at: plain, color: planColor, mark: draw.CircleGlyph{}, line: true},
		{name: "bound for any checkpoints that fit", at: bounds, color: boundColor, line: true, dashes: dashed},
		{name: "the largest batch known to fit", at: largest, color: largestColor, mark: draw.PyramidGlyph{}},
		{name: "the most samples per second", at: plotter.XYs{{X: float64(r.Config.Batch), Y: b.SamplesPerSecond}}, color: chosenColor, mark: draw.BoxGlyph{}},
	} {
		if err := s.add(p); err != nil {
			return nil, err
		}
	}
	p.X.Min = 0
	return p, nil
}

// memories is the lower part: the process's memory over the batch, and the card's.
func memories(r *planner.Report) (*plot.Plot, error) {
	b, p := r.Batch.Best, newPlot("batch", "memory, GiB")
	var fits, not plotter.XYs
	for _, x := range b.Points {
		at := plotter.XY{X: float64(x.Batch), Y: float64(x.ProcessBytes) / gib}
		if x.Fits {
			fits = append(fits, at)
		} else if len(not) == 0 || x.ProcessBytes < 3*r.Config.VRAM {
			not = append(not, at)
		}
	}
	most := float64(b.Points[len(b.Points)-1].Batch)
	p.Y.Min = 0
	for _, s := range []series{
		{name: "fits as asked", at: fits, color: planColor, mark: draw.CircleGlyph{}, line: true},
		{name: "does not", at: not, color: boundColor, mark: draw.RingGlyph{}, line: true, dashes: dashed},
		{name: "the card", at: plotter.XYs{{X: 0, Y: float64(r.Config.VRAM) / gib}, {X: most, Y: float64(r.Config.VRAM) / gib}}, color: cardColor, line: true, dashes: []vg.Length{vg.Points(1), vg.Points(2)}},
		{name: "the most samples per second", at: plotter.XYs{{X: float64(r.Config.Batch), Y: float64(r.Peak.ProcessBytes) / gib}}, color: chosenColor, mark: draw.BoxGlyph{}},
	} {
		if err := s.add(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Ways draws the ways of a comparison, memory against samples per second, with the line of those
// that no other beats in both, as an SVG document.
func Ways(w io.Writer, c *planner.Comparison) error {
	p := newPlot("memory of the process, GiB", "samples per second")
	var fits, not plotter.XYs
	labels := plotter.XYLabels{}
	for i := range c.Ways {
		x := &c.Ways[i]
		if x.Why != "" {
			continue
		}
		at := plotter.XY{X: float64(x.ProcessBytes) / gib, Y: x.SamplesPerSecond}
		if x.Fits == nil || *x.Fits {
			fits = append(fits, at)
		} else {
			not = append(not, at)
		}
		if k := slices.IndexFunc(labels.XYs, func(o plotter.XY) bool { return alike(o.X, at.X) && alike(o.Y, at.Y) }); k >= 0 {
			labels.Labels[k] += ", " + x.Name
			continue
		}
		labels.XYs, labels.Labels = append(labels.XYs, at), append(labels.Labels, "  "+x.Name)
	}
	card := plotter.XYs(nil)
	if v := float64(c.VRAMBytes) / gib; v > 0 {
		card = plotter.XYs{{X: v, Y: 0}, {X: v, Y: mostOf(labels.XYs)}}
	}
	for _, s := range []series{
		{name: "no other is smaller and faster", at: undominated(fits), color: planColor, line: true, steps: plotter.PostStep},
		{name: "fits", at: fits, color: planColor, mark: draw.CircleGlyph{}},
		{name: "does not fit", at: not, color: boundColor, mark: draw.RingGlyph{}},
		{name: "the card", at: card, color: cardColor, line: true, dashes: dashed},
	} {
		if err := s.add(p); err != nil {
			return err
		}
	}
	names, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range names.TextStyle {
		names.TextStyle[i].Font.Variant = "Sans"
	}
	p.Add(names)
	p.X.Min, p.Y.Min = 0, 0
	p.X.Max, p.Y.Max = 1.25*p.X.Max, 1.04*p.Y.Max // room for names
	canvas := vgsvg.New(width, height)
	p.Draw(draw.New(canvas))
	_, err = canvas.WriteTo(w)
	return err
}

// alike reports two numbers that a drawing would not tell apart.
func alike(a, b float64) bool { return math.Abs(a-b) <= 0.015*max(a, b) }

func mostOf(list plotter.XYs) (most float64) {
	for _, at := range list {
		most = max(most, at.Y)
	}
	return most
}

// undominated are the points to which no other is at least equal in both, by memory.
func undominated(list plotter.XYs) (out plotter.XYs) {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b plotter.XY) int { return cmp.Or(cmp.Compare(a.X, b.X), -cmp.Compare(a.Y, b.Y)) })
	for _, at := range sorted {
		if len(out) == 0 || at.Y > out[len(out)-1].Y {
			out = append(out, at)
		}
	}
	return out
}
