package train

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
)

// Experts is expert parallelism: of every layer of experts a rank has its share, and tokens go to
// the ranks of their experts and back (aten.Dispatch).
type Experts struct {
	Ranks, Rank int
	// Sites are the layers, as FindExperts finds them.
	Sites []ExpertSite
	// Imbalance is how many times the rows of a balanced router this rank receives, from 1; more
	// than all that there are is all of them.
	Imbalance float64
}

// An ExpertSite is a layer of experts, and what of the graph is its call.
type ExpertSite struct {
	// Module is the one whose parameters the ranks divide.
	Module  string
	Experts int64 // all of them
	Best    int64 // experts that a token goes to

	first, last      int             // calls that the dispatch stands in place of
	x, index, scores graph.ValueID   // tokens, and for each the numbers of its experts and their scores
	out              graph.ValueID   // what the layer returns
	gone             map[int]bool    // calls from first to last and before, that do not run
	steps            []expertStep    // of fused experts, in order; nil for a list of modules
	input            graph.ValueID   // of steps: the rows, as the file's first call on them names them
	result           graph.ValueID   // of steps: the rows' results
	calls            [][]int         // of a list of modules: the calls of each
	results          []graph.ValueID // likewise, what each returns
	params           []graph.ValueID
}

// An expertStep is a call on the rows of a rank's experts.
type expertStep struct {
	call    int           // of the file, where weight is NoValue
	numbers graph.ValueID // likewise: the experts' numbers by which it picks vectors, or NoValue
	weight  graph.ValueID // experts' matrices, multiplied with the rows
	rows    graph.ValueID
	out     graph.ValueID
	swapped bool // matrices are [out, in]
}

// Rows returns the rows that a rank receives of n that each rank sends: balanced, and the most that there can
// be, which is all if a rank holds as many experts as a token goes to.
func (s *ExpertSite) Rows(ranks int, tokens int64) (balanced, most int64) {
	local := s.Experts / int64(ranks)
	return tokens * s.Best, tokens * int64(ranks) * min(s.Best, local)
}

// Received is the rows between balanced and most that a rank receives at an imbalance.
func Received(balanced, most int64, imbalance float64) int64 {
	if n := math.Ceil(float64(balanced) * max(imbalance, 1)); n < float64(most) {
		return int64(n)
	}
	return most
}

// Tokens returns how many tokens the layer is called with.
func (s *ExpertSite) Tokens(l *lift.Lifted) int64 {
	n, _ := graph.Product(static(l.Graph, s.index))
	return n / max(s.Best, 1)
}

// within reports the number of a list's expert that owns a parameter, -1 for none and for fused ones.
func (s *ExpertSite) within(name string) int {
	rest, ok := strings.CutPrefix(name, s.Module+".")
	if !ok || s.steps != nil {
		return -1
	}
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return n
}

// A dispatched is a layer of experts that a step runs.
type dispatched struct {
	*ExpertSite
	routing aten.Routing
	prefix  []int64 // dims that count the tokens
}

// dispatches checks that the ranks can share each layer's experts, and finds what each receives.
func (b *builder) dispatches() error {
	x := b.opt.Experts
	if x == nil {
		return nil
	}
	b.sites = map[int]*dispatched{}
	b.left = map[int]bool{}
	for i := range x.Sites {
		s := &x.Sites[i]
		if s.Experts%int64(x.Ranks) != 0 {
			return fmt.Errorf("ep=%d: %s has %d experts, which as many ranks cannot share evenly: give a divisor of %d", x.Ranks, s.Module, s.Experts, s.Experts)
		}
		shape := static(b.l.Graph, s.x)
		if len(shape) < 2 {
			return fmt.Errorf("%s: tokens of shape %v", s.Module, shape)
		}
		d := &dispatched{s, aten.Routing{Ranks: x.Ranks, Experts: s.Experts, Best: s.Best}, shape[:len(shape)-1]}
		balanced, most := s.Rows(x.Ranks, s.Tokens(b.l))
		d.routing.Rows = Received(balanced, most, x.Imbalance)
		if err := b.uncut(s); err != nil {
			return err
		}
		b.sites[s.last] = d
		for call := range s.gone {
			b.left[call] = true
		}
	}
	return nil
}

// whole lists the calls that each layer of experts stands in place of.
func (b *builder) whole() (out [][2]int) {
	if b.opt.Experts == nil {
		return nil
	}
	for _, s := range b.opt.Experts.Sites {
		out = append(out, [2]int{s.first, s.last + 1})
	}
	return out
}

// uncut returns an error for checkpoints that begin or end within a layer of experts: it runs as a whole.
func (b *builder) uncut(s *ExpertSite) error {
	for i, r := range b.ranges {
		if r[0] <= s.last && r[1] > s.first && (r[0] > s.first || r[1] <= s.last) {
			return fmt.Errorf("checkpoint %v: it begins or ends within the experts %s, which run as a whole where ranks share them: checkpoint the module around them, or none of them", b.opt.Segments[i].Modules, s.Module)
		}
	}
	return nil
}

// share returns the shape that this rank has of a parameter, nil for none.
func (b *builder) share(id graph.ValueID, shape []int64) []int64 {
	x := b.opt.Experts
	if x == nil {
		return shape
	}
	for i := range x.Sites {
		s := &x.Sites[i]
		local := int(s.Experts) / x.Ranks
		if n := s.within(b.l.Graph.Values[id].Name); n >= 0 && (n < x.Rank*local || n >= (x.Rank+1)*local) {
			return nil
		}
		if slices.Contains(s.params, id) {
			out := slices.Clone(shape)
			out[0] = int64(local)
			return out
		}
	}
	return shape
}

// dispatch runs a layer of experts in place of its calls; i is the last of them.
func (b *builder) dispatch(i int, s *dispatched, env []*aten.Tensor) error {
	x, index, scores := env[s.x], env[s.index], env[s.scores]
	if x == nil || index == nil || scores == nil {
		return fmt.Errorf("experts %s: a checkpoint begins or ends between the router and its experts: take in both, or neither", s.Module)
	}
	before := &aten.Call{Index: int32(i), Name: "dispatch", Module: parent(s.Module)}
	inside := &aten.Call{Index: int32(i), Name: "experts", Module: s.Module}
	var d *aten.Dispatch
	var rows *aten.Tensor
	width := x.Shape[len(x.Shape)-1]
	err := b.e.On(before, func() {
		tokens := b.e.Reshape(x, []int64{x.Numel() / width, width})
		d = b.e.NewDispatch(s.routing, tokens, b.e.Reshape(index, []int64{index.Numel() / s.Best, s.Best}), b.e.Reshape(scores, []int64{index.Numel() / s.Best, s.Best}))
	})
	if err == nil {
		err = b.e.On(inside, func() { rows = d.Send() })
	}
	if err != nil {
		return fmt.Errorf("experts %s: %w", s.Module, err)
	}
	inner := slices.Clone(env)
	var out *aten.Tensor
	if s.steps != nil {
		out, err = b.fusedExperts(s, d, rows, inner, inside)
	} else {
		out, err = b.listedExperts(s, d, inner, inside)
	}
	if err != nil {
		return fmt.Errorf("experts %s: %w", s.Module, err)
	}
	var back *aten.Tensor
	if err = b.e.On(inside, func() { back = d.Return(out) }); err == nil {
		err = b.e.On(before, func() { env[s.out] = b.e.Reshape(d.Sum(back), x.Shape) })
	}
	if err != nil {
		return fmt.Errorf("experts %s: %w", s.Module, err)
	}
	b.e.Hold(x, index, scores)
	for k := s.first; k <= i; k++ {
		if s.gone[k] {
			for _, id := range b.holds[k] {
				b.e.Hold(env[id])
			}
		}
	}
	return nil
}

// fusedExperts runs the calls of a fused layer on the rows of this rank's experts.
func (b *builder) fusedExperts(s *dispatched, d *aten.Dispatch, rows *aten.Tensor, env []*aten.Tensor, c *aten.Call) (*aten.Tensor, error) {
	n := static(b.l.Graph, s.input)[0]
	b.rows = &reshaped{from: []int64{n}, to: rows.Shape[0]}
	defer func() { b.rows = nil }()
	env[s.input] = rows
	var offsets *aten.Tensor
	if err := b.e.On(c, func() {
		for _, id := range s.params { // before the products: their gradients are added up after all of them
			env[id] = b.e.Local(env[id])
		}
		offsets = d.Offsets()
	}); err != nil {
		return nil, err
	}
	for _, st := range s.steps {
		switch {
		case st.weight >= 0:
			call := *c
			call.Name = b.l.Graph.Values[st.out].Name
			if err := b.e.On(&call, func() { env[st.out] = b.e.GroupedProduct(env[st.rows], env[st.weight], offsets, st.swapped) }); err != nil {
				return nil, err
			}
		case st.call < 0:
			env[st.out] = env[st.rows]
		default:
			if st.numbers >= 0 && env[st.numbers] == nil {
				if err := b.e.On(c, func() { env[st.numbers] = d.Numbers() }); err != nil {
					return nil, err
				}
			}
			if err := b.call(st.call, env); err != nil {
				return nil, err
			}
		}
	}
	b.e.Hold(offsets)
	return env[s.result], nil
}

// listedExperts runs each of this rank's modules on its rows.
func (b *builder) listedExperts(s *dispatched, d *aten.Dispatch, env []*aten.Tensor, c *aten.Call) (*aten.Tensor, error) {
	var parts, results []*aten.Tensor
	if err := b.e.On(c, func() { parts = d.Parts() }); err != nil {
		return nil, err
	}
	defer func() { b.rows = nil }()
	local := int(s.routing.Local())
	for k, part := range parts {
		e := b.opt.Experts.Rank*local + k
		b.rows = &reshaped{from: s.prefix, to: part.Shape[0]}
		own := slices.Clone(env)
		own[s.x] = part
		for _, i := range s.calls[e] {
			if err := b.call(i, own); err != nil {
				return nil, err
			}
		}
		results = append(results, own[s.results[e]])
	}
	b.rows = nil
	var out *aten.Tensor
	err := b.e.On(c, func() { out = d.Join(results) })
	return out, err
}

// A reshaped says how shapes of the file differ in a call: the leading dims are others.
type reshaped struct {
	from []int64
	to   int64
}

// shape returns a shape as it is in such a call.
func (r *reshaped) shape(s []int64) []int64 {
	if r == nil || len(s) < len(r.from) || !slices.Equal(s[:len(r.from)], r.from) {
		return s
	}
	return append([]int64{r.to}, s[len(r.from):]...)
}
