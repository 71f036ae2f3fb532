package planner

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/bounded"
	"github.com/memplan/memplan/graph/program"
)

// A MeasuredNode is a row of the document that validate --profile writes: one
// node of a step, the properties that determine its time, and that time, in
// milliseconds of all its runs in a step.
type MeasuredNode struct {
	Op          string  `json:"op"`
	Node        string  `json:"node"`
	Phase       string  `json:"phase"`
	Kind        string  `json:"kind"`  // KindOf the node
	DType       string  `json:"dtype"` // in which the roofline counts its arithmetic
	Runs        int     `json:"runs"`
	FLOPs       int64   `json:"flops"`
	Traffic     int64   `json:"traffic"` // bytes
	Scratch     int64   `json:"scratch"` // bytes
	PredictedMs float64 `json:"predictedMs"`
	MeasuredMs  float64 `json:"measuredMs"`
}

// Measure makes the row of a node that took measuredMs milliseconds.
func Measure(n *program.Node, runs int, predictedMs, measuredMs float64) MeasuredNode {
	return MeasuredNode{Op: "aten." + n.Op, Node: n.Name, Phase: n.Phase.String(), Kind: KindOf(n), DType: arithmetic(n).String(), Runs: runs,
		FLOPs: n.FLOPs, Traffic: n.Traffic, Scratch: n.Scratch, PredictedMs: predictedMs, MeasuredMs: measuredMs}
}

// KindOf describes everything that determines a node's time: its operator, the
// types, shapes and strides of its operands and results, and the geometry of a
// convolution or a pooling. Nodes of one kind differ only in their numbers.
func KindOf(n *program.Node) string {
	var b strings.Builder
	b.WriteString(n.Op)
	if k := n.Does(); k != n.Op {
		b.WriteString("=" + k)
	}
	for i := range n.In {
		writeTensor(&b, " ", &n.In[i])
	}
	for i := range n.Out {
		writeTensor(&b, " >", &n.Out[i])
	}
	if a := n.Attrs; a != nil {
		if c := a.Conv; c != nil {
			fmt.Fprintf(&b, " conv s%v p%v d%v o%v g%d t%t", c.Stride, c.Pad, c.Dilation, c.OutPad, c.Groups, c.Transposed)
		}
		if p := a.Pool; p != nil {
			fmt.Fprintf(&b, " pool k%v s%v p%v d%v", p.Kernel, p.Stride, p.Pad, p.Dilation)
		}
		if len(a.Dims) > 0 {
			fmt.Fprintf(&b, " dims%v", a.Dims)
		}
		if r := a.Rule; r != nil {
			fmt.Fprintf(&b, " %s %d parameters %d bytes", r.Optimizer, len(r.Params), n.Traffic)
		}
	}
	return b.String()
}

// writeTensor writes a type, a shape, and strides that are not row-major.
func writeTensor(b *strings.Builder, before string, t *program.View) {
	fmt.Fprintf(b, "%s%v%v", before, t.DType, t.Shape)
	want := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if i < len(t.Strides) && t.Shape[i] > 1 && t.Strides[i] != want {
			fmt.Fprintf(b, "/%v", t.Strides)
			return
		}
		want *= t.Shape[i]
	}
}

// Times are operator times measured on a device.
type Times struct {
	Path   string
	Device string // its name
	exact  map[string]meanTime
	rows   map[opType][]MeasuredNode // in the order of the file
}

// A meanTime accumulates times, in seconds.
type meanTime struct {
	sum float64
	n   int
}

type opType struct{ op, dtype string }

// ReadTimes reads a document that validate --profile wrote.
func ReadTimes(path string) (*Times, error) { return readTimes(files.Door{}, path) }

func readTimes(d files.Door, name string) (*Times, error) {
	data, err := readDocument(d, name)
	if err != nil {
		return nil, err
	}
	t, err := parseTimes(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.Path = name
	return t, nil
}

func parseTimes(data []byte) (*Times, error) {
	var d struct {
		Device struct {
			Name string `json:"name"`
		} `json:"device"`
		Nodes []MeasuredNode `json:"nodes"`
	}
	if err := bounded.Decode(data, &d); err != nil {
		return nil, err
	}
	if len(d.Nodes) == 0 {
		return nil, errors.New("has no measured nodes: make one with memplan validate --profile FILE")
	}
	t := &Times{Device: d.Device.Name, exact: map[string]meanTime{}, rows: map[opType][]MeasuredNode{}}
	for i := range d.Nodes {
		n := &d.Nodes[i]
		switch {
		case n.Kind == "" || n.Runs < 1:
			return nil, fmt.Errorf("node %d (%s) has no kind: an older memplan wrote it; make it again with memplan validate --profile FILE", i, n.Node)
		case n.MeasuredMs < 0 || n.FLOPs < 0 || n.Traffic < 0 || n.Scratch < 0:
			return nil, fmt.Errorf("node %d (%s): negative figures", i, n.Node)
		}
		n.Op = strings.TrimPrefix(n.Op, "aten.")
		m := t.exact[n.Kind]
		t.exact[n.Kind] = meanTime{m.sum + n.MeasuredMs/1e3/float64(n.Runs), m.n + 1}
		k := opType{n.Op, n.DType}
		t.rows[k] = append(t.rows[k], *n)
	}
	return t, nil
}

// A source is the origin of a node's time.
type source int

const (
	fromRoofline source = iota // nothing similar was measured
	fromNearest                // another size of the same operator and type was measured
	fromKind                   // its kind was measured
)

// seconds returns a node's measured time. A size that was not measured gets the
// ratio to the roofline of the nearest one that was.
func (t *Times) seconds(m *TimeModel, n *program.Node) (float64, source) {
	if e, ok := t.exact[KindOf(n)]; ok {
		return e.sum / float64(e.n), fromKind
	}
	d := arithmetic(n)
	var best *MeasuredNode
	least := math.Inf(1)
	rows := t.rows[opType{n.Op, d.String()}]
	for i := range rows {
		if x := apart(&rows[i], n); x < least {
			best, least = &rows[i], x
		}
	}
	if best == nil {
		return 0, fromRoofline
	}
	like := *n
	like.FLOPs, like.Traffic, like.Scratch = best.FLOPs, best.Traffic, best.Scratch
	like.In, like.Out = shapesOf(best.Kind, n)
	return best.MeasuredMs / 1e3 / float64(best.Runs) * m.roofline(n) / max(m.roofline(&like), 1e-12), fromNearest
}

// shaped matches a tensor in what KindOf writes.
var shaped = regexp.MustCompile(` (>?)[a-z]\w*\[([\d ]*)\]`)

// shapesOf are n's operands and results with the shapes that KindOf wrote of another node
// of its operator; n's own where it had others.
func shapesOf(kind string, n *program.Node) (in, out []program.View) {
	in, out = slices.Clone(n.In), slices.Clone(n.Out)
	i, o := 0, 0
	for _, end := range []string{" conv s", " pool k", " dims["} {
		kind, _, _ = strings.Cut(kind, end)
	}
	for _, t := range shaped.FindAllStringSubmatch(kind, -1) {
		list, at := in, &i
		if t[1] != "" {
			list, at = out, &o
		}
		if *at == len(list) {
			return n.In, n.Out
		}
		list[*at].Shape = nil
		for _, d := range strings.Fields(t[2]) {
			v, _ := strconv.ParseInt(d, 10, 64) // digits
			list[*at].Shape = append(list[*at].Shape, v)
		}
		*at++
	}
	if i < len(in) || o < len(out) {
		return n.In, n.Out
	}
	return in, out
}

// apart returns the distance of two sizes of an operator: the difference of the
// logarithms of their arithmetic and of their traffic.
func apart(a *MeasuredNode, n *program.Node) float64 {
	ln := func(x, y int64) float64 { return math.Abs(math.Log(float64(x+1) / float64(y+1))) }
	return ln(a.FLOPs, n.FLOPs) + ln(a.Traffic+a.Scratch, n.Traffic+n.Scratch)
}

// arithmetic returns the type of a node's last floating-point operand.
func arithmetic(n *program.Node) graph.DType {
	d := graph.Float32
	for _, t := range n.In {
		if t.DType.IsFloat() {
			d = t.DType
		}
	}
	return d
}

// TimeSources counts the operations of a step by the origin of their times.
type TimeSources struct {
	Device    string `json:"device"`    // the measured device
	Measured  int    `json:"measured"`  // their kind and size was measured
	Nearest   int    `json:"nearest"`   // from another size's time, scaled by the roofline
	Estimated int    `json:"estimated"` // from the roofline alone
}

// sources counts a program's operations; nil if nothing was measured.
func (m *TimeModel) sources(p *program.Program) *TimeSources {
	if m.Times == nil {
		return nil
	}
	out := &TimeSources{Device: m.Times.Device}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Only == program.FirstStep || m.roofline(n) == 0 {
			continue
		}
		switch _, from := m.Times.seconds(m, n); from {
		case fromKind:
			out.Measured++
		case fromNearest:
			out.Nearest++
		default:
			out.Estimated++
		}
	}
	return out
}

// times reads the measured times that a question names.
func times(d files.Door, path string) (*Times, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // none given
	}
	t, err := readTimes(d, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--times: no such file %s: make it with memplan validate --profile FILE", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--times: %w", err)
	}
	return t, nil
}
