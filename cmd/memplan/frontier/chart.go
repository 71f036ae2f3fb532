// Package frontier draws the tradeoff between memory and time: the overhead of
// the cheapest schedules over the budget, with the bound below them.
package frontier

import (
	"image/color"
	"io"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/memplan/memplan/checkpointsel/remat"
)

const (
	width  = 18 * vg.Centimeter
	height = 11 * vg.Centimeter
	dpi    = 110
)

var (
	planColor  = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	boundColor = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
)

// SVG draws a frontier as an SVG document.
func SVG(w io.Writer, f *remat.Frontier) error {
	p, err := chart(f)
	if err != nil {
		return err
	}
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	_, err = c.WriteTo(w)
	return err
}

// PNG draws the same chart as pixels.
func PNG(w io.Writer, f *remat.Frontier) error {
	p, err := chart(f)
	if err != nil {
		return err
	}
	c := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi))
	p.Draw(draw.New(c))
	_, err = vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// chart builds the plot: in steps, because a plan for less memory is valid up
// to the budget of the next.
func chart(f *remat.Frontier) (*plot.Plot, error) {
	p := plot.New()
	p.X.Label.Text = "budget, GiB"
	p.Y.Label.Text = "overhead, % of the step"
	p.Legend.Top = true
	for _, st := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		st.Font.Variant = "Sans"
	}
	var plans, bounds plotter.XYs
	for i := range f.Points {
		at := &f.Points[i]
		bounds = append(bounds, plotter.XY{X: float64(at.Budget) / (1 << 30), Y: 100 * at.Bound})
		plans = append(plans, plotter.XY{X: float64(at.Peak) / (1 << 30), Y: 100 * at.Overhead})
	}
	slices.Reverse(bounds)
	slices.Reverse(plans)
	for _, l := range []struct {
		name  string
		at    plotter.XYs
		color color.Color
		steps plotter.StepKind
	}{{"best schedule found", plans, planColor, plotter.PostStep}, {"no schedule goes below", bounds, boundColor, plotter.NoStep}} {
		line, err := plotter.NewLine(l.at)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width, line.StepStyle = l.color, vg.Points(1.5), l.steps
		p.Add(line)
		p.Legend.Add(l.name, line)
	}
	p.Y.Min = 0
	return p, nil
}
