package timeline

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/profile"
)

const (
	chartWidth  = 26 * vg.Centimeter
	chartHeight = 11 * vg.Centimeter
	legendWidth = 36 * vg.Millimeter
	chartDPI    = 110
	mostColumns = 640 // more could not be distinguished
)

// palette has a colour for each category, in the order of reports; neighbours
// differ in lightness as well as in hue (Okabe and Ito's colours).
var palette = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0x8c, 0xc6, 0xf0, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0x55, 0x55, 0x55, 0xff}, color.RGBA{0xf0, 0xe4, 0x42, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff},
}

// SVG draws live bytes over the events of a step, as stacked areas by category,
// as an SVG document.
func SVG(w io.Writer, s *Step) error {
	c := vgsvg.New(chartWidth, chartHeight)
	if err := render(s, draw.New(c)); err != nil {
		return err
	}
	_, err := c.WriteTo(w)
	return err
}

// PNG draws the same chart as pixels.
func PNG(w io.Writer, s *Step) error {
	c := vgimg.NewWith(vgimg.UseWH(chartWidth, chartHeight), vgimg.UseDPI(chartDPI))
	if err := render(s, draw.New(c)); err != nil {
		return err
	}
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// render draws the plot with the legend beside it.
func render(s *Step, c draw.Canvas) error {
	p, legend, err := chart(s)
	if err != nil {
		return err
	}
	p.Draw(draw.Crop(c, vg.Millimeter, -legendWidth, vg.Millimeter, -2*vg.Millimeter))
	legend.Draw(draw.Crop(c, chartWidth-legendWidth+2*vg.Millimeter, 0, 0, -12*vg.Millimeter))
	return nil
}

// chart builds the plot: areas, then marks where phases begin.
func chart(s *Step) (*plot.Plot, *plot.Legend, error) {
	p, legend := plot.New(), plot.NewLegend()
	p.Title.Text = s.Title
	p.X.Label.Text = "allocations and frees of a steady step, in order"
	p.X.Tick.Marker, p.X.Tick.Length = phaseTicks(s.Stack.Points), 0
	p.Y.Tick.Marker = sizeTicks{}
	legend.Top, legend.Left = true, true
	legend.Padding = vg.Millimeter
	for _, st := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &legend.TextStyle} {
		st.Font.Variant = "Sans"
	}
	columns, at := reduce(s.Stack.Points, mostColumns)
	top, err := areas(p, &legend, s.Stack.Categories, columns, at)
	if err != nil {
		return nil, nil, err
	}
	p.X.Min, p.X.Max = 0, float64(max(len(s.Stack.Points)-1, 1))
	p.Y.Min, p.Y.Max = 0, math.Max(top, 1)*1.04
	return p, &legend, phaseMarks(p, s.Stack.Points)
}

// reduce returns at most n points, the highest of each of n equal parts, with
// their indices.
func reduce(pts []planner.StackPoint, n int) (columns []*planner.StackPoint, at []float64) {
	n = min(n, len(pts))
	for c := range n {
		lo, hi := c*len(pts)/n, (c+1)*len(pts)/n
		best := lo
		for i := lo + 1; i < hi; i++ {
			if pts[i].Total() > pts[best].Total() {
				best = i
			}
		}
		columns, at = append(columns, &pts[best]), append(at, float64(best))
	}
	return columns, at
}

// areas stacks one polygon for each category that ever has bytes, and returns
// the height of the stack. The legend lists them from the top down.
func areas(p *plot.Plot, legend *plot.Legend, categories []string, columns []*planner.StackPoint, at []float64) (top float64, err error) {
	below := make([]float64, len(columns))
	var entries []func()
	for k, name := range categories {
		above, any := make([]float64, len(columns)), false
		for i, c := range columns {
			above[i] = below[i] + float64(c.Bytes[k])
			any = any || c.Bytes[k] > 0
			top = math.Max(top, above[i])
		}
		if !any {
			continue
		}
		area, err := polygon(at, below, above)
		if err != nil {
			return 0, err
		}
		area.Color = palette[k%len(palette)]
		area.LineStyle.Width = 0
		p.Add(area)
		entries = append(entries, func() { legend.Add(name, area) })
		below = above
	}
	for _, add := range slices.Backward(entries) {
		add()
	}
	return top, nil
}

func polygon(at, below, above []float64) (*plotter.Polygon, error) {
	outline := make(plotter.XYs, 0, 2*len(at))
	for i := range at {
		outline = append(outline, plotter.XY{X: at[i], Y: above[i]})
	}
	for i := len(at) - 1; i >= 0; i-- {
		outline = append(outline, plotter.XY{X: at[i], Y: below[i]})
	}
	return plotter.NewPolygon(outline)
}

// phaseMarks draws a line where each phase begins.
func phaseMarks(p *plot.Plot, pts []planner.StackPoint) error {
	for i := range pts {
		if i == 0 || pts[i].Phase == pts[i-1].Phase {
			continue
		}
		line, err := plotter.NewLine(plotter.XYs{{X: float64(i), Y: 0}, {X: float64(i), Y: p.Y.Max}})
		if err != nil {
			return err
		}
		line.Color, line.Width = color.Gray{0x88}, vg.Points(0.6)
		line.Dashes = []vg.Length{vg.Points(2), vg.Points(2)}
		p.Add(line)
	}
	return nil
}

// phaseTicks names the phases at their middle, except for short ones.
func phaseTicks(pts []planner.StackPoint) plot.ConstantTicks {
	var out plot.ConstantTicks
	for i := 0; i < len(pts); {
		n := phaseLength(pts, i)
		if 15*n > len(pts) {
			out = append(out, plot.Tick{Value: float64(i) + float64(n)/2, Label: pts[i].Phase})
		}
		i += n
	}
	return out
}

// phaseLength returns the number of consecutive points from i on in one phase.
func phaseLength(pts []planner.StackPoint, i int) int {
	j := i
	for j < len(pts) && pts[j].Phase == pts[i].Phase {
		j++
	}
	return j - i
}

// sizeTicks marks the axis at round binary sizes.
type sizeTicks struct{}

// Ticks implements plot.Ticker with four to nine labelled marks.
func (sizeTicks) Ticks(lo, hi float64) []plot.Tick {
	step := 1.0
	for hi/step > 8 {
		step *= 2
	}
	var out []plot.Tick
	for v := math.Ceil(lo/step) * step; v <= hi; v += step {
		out = append(out, plot.Tick{Value: v, Label: tickLabel(int64(v))})
	}
	return out
}

func tickLabel(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{profile.GiB, "GiB"}, {profile.MiB, "MiB"}, {profile.KiB, "KiB"}} {
		if n >= u.bytes {
			return fmt.Sprintf("%g %s", float64(n)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
