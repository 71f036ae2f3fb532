package infer

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
)

// attention is ai.onnx Attention: Q, K, V [B,H,S,D] or packed [B,S,H*D];
// optional mask, past key and value. Outputs: result, present key and value,
// scores.
func attention(c *call) error {
	q, k, v := c.shape(0), c.shape(1), c.shape(2)
	if err := checkAttention(c); err != nil {
		return err
	}
	if q == nil || k == nil || v == nil {
		c.out(0, c.elem(0), unknownLike(q))
		for i := 1; i < 4; i++ {
			c.out(i, c.elem(min(i, 2)), unknownDims(4))
		}
		return nil
	}
	packed := len(q) == 3
	if packed {
		heads, kvHeads := c.int("q_num_heads", 0), c.int("kv_num_heads", 0)
		if heads <= 0 || kvHeads <= 0 {
			return fmt.Errorf("packed inputs need q_num_heads and kv_num_heads")
		}
		var err error
		if q, err = unpack(q, heads); err != nil {
			return err
		}
		if k, err = unpack(k, kvHeads); err != nil {
			return err
		}
		if v, err = unpack(v, kvHeads); err != nil {
			return err
		}
	}
	if _, ok := mergeDim(q[3], k[3]); !ok {
		return fmt.Errorf("query %s and key %s differ in head size", text(c.shape(0)), text(c.shape(1)))
	}
	past, pastV := graph.Int(0), graph.Int(0)
	if c.has(4) {
		past, pastV = c.dim(4, 2), c.dim(5, 2)
	}
	total := past.Add(k[2])
	batch, _ := mergeDim(q[0], k[0])
	if packed {
		c.out(0, c.elem(0), graph.Shape{batch, q[2], q[1].Mul(v[3])})
	} else {
		c.out(0, c.elem(0), graph.Shape{batch, q[1], q[2], v[3]})
	}
	c.out(1, c.elem(1), graph.Shape{batch, k[1], total, k[3]})
	c.out(2, c.elem(2), graph.Shape{batch, v[1], pastV.Add(v[2]), v[3]})
	c.out(3, c.elem(0), graph.Shape{batch, q[1], q[2], total})
	return nil
}

func unknownLike(s graph.Shape) graph.Shape {
	if s == nil {
		return nil
	}
	return unknownDims(len(s))
}

// unpack splits [B,S,H*D] into [B,H,S,D].
func unpack(s graph.Shape, heads int64) (graph.Shape, error) {
	h := graph.Int(heads)
	if n, ok := s[2].Int(); ok && n%heads != 0 {
		return nil, fmt.Errorf("%s does not divide into %d heads", text(s), heads)
	}
	return graph.Shape{s[0], h, s[1], s[2].FloorDiv(h)}, nil
}

func checkAttention(c *call) error {
	for i := range 3 {
		if err := c.wantRank(i, 4, 3); err != nil {
			return err
		}
		if c.rank(i) >= 0 && c.rank(0) >= 0 && c.rank(i) != c.rank(0) {
			return fmt.Errorf("query %s and input %d %s differ in rank", text(c.shape(0)), i, text(c.shape(i)))
		}
	}
	for _, name := range []string{"left_window_size", "right_window_size"} {
		if n := c.int(name, -1); n < -1 {
			return fmt.Errorf("%s is %d", name, n)
		}
	}
	switch {
	case c.has(4) != c.has(5):
		return fmt.Errorf("past_key and past_value belong together")
	case c.wanted(1) != c.wanted(2):
		return fmt.Errorf("present_key and present_value belong together")
	case c.has(6) && (c.has(4) || c.wanted(1)):
		return fmt.Errorf("nonpad_kv_seqlen excludes past and present caches")
	case c.rank(0) == 4 && c.ver >= 25 && (c.attr("q_num_heads") != nil || c.attr("kv_num_heads") != nil):
		return fmt.Errorf("q_num_heads and kv_num_heads are for packed inputs, not %s", text(c.shape(0)))
	}
	return nil
}

// flexAttention: Q [B,Hq,L,Dqk], K [B,Hkv,S,Dqk], V [B,Hkv,S,Dv].
func flexAttention(c *call) error {
	for i := range 3 {
		if err := c.wantRank(i, 4); err != nil {
			return err
		}
	}
	if err := sameElems(c, 3); err != nil {
		return err
	}
	pairs := []struct {
		a, i, b, j int
		what       string
	}{
		{0, 0, 1, 0, "batch"}, {0, 0, 2, 0, "batch"}, {1, 1, 2, 1, "heads of key and value"},
		{0, 3, 1, 3, "head size of query and key"}, {1, 2, 2, 2, "sequence length of key and value"},
	}
	for _, p := range pairs {
		if _, ok := mergeDim(c.dim(p.a, p.i), c.dim(p.b, p.j)); !ok {
			return fmt.Errorf("%s: %s and %s differ", p.what, text(c.shape(p.a)), text(c.shape(p.b)))
		}
	}
	m, ok1 := c.dim(0, 1).Int()
	n, ok2 := c.dim(1, 1).Int()
	if ok1 && ok2 && (n == 0 || m%n != 0) {
		return fmt.Errorf("%d query heads for %d key heads", m, n)
	}
	return flexOutput(c)
}

// flexOutput also checks the modifier graphs, if any.
func flexOutput(c *call) error {
	precision := graph.Float32
	if c.elem(0) == graph.Float64 {
		precision = graph.Float64
	}
	precision = c.dtype("softmax_precision", precision)
	scores := tensorOf(precision, graph.Shape{c.dim(0, 0), c.dim(0, 1), c.dim(0, 2), c.dim(1, 2)})
	for _, name := range []string{"score_mod", "prob_mod"} {
		a := c.attr(name)
		if a == nil || a.Graph == nil {
			continue
		}
		out, err := subgraph(c, a.Graph, name, []item{{typ: scores}})
		if err != nil {
			return err
		}
		if len(out) != 1 {
			return fmt.Errorf("%s has %d outputs, not one", name, len(out))
		}
		if _, conflict := mergeTypes(out[0].typ, scores); conflict != "" {
			return fmt.Errorf("%s changes the scores: %s", name, conflict)
		}
	}
	c.out(0, c.elem(0), graph.Shape{c.dim(0, 0), c.dim(0, 1), c.dim(0, 2), c.dim(2, 3)})
	return nil
}

// linearAttention: query [B,T,Hq*dk], key [B,T,Hkv*dk], value [B,T,Hkv*dv],
// optional state [B,Hkv,dk,dv], decay, beta.
func linearAttention(c *call) error {
	h, kv := c.int("q_num_heads", 0), c.int("kv_num_heads", 0)
	if c.n.Domain != "" && kv == 0 {
		kv = h
	}
	if err := checkLinearAttention(c, h, kv); err != nil {
		return err
	}
	hq, hkv := graph.Int(h), graph.Int(kv)
	dk := c.dim(1, 2).FloorDiv(hkv)
	if !dk.Known() {
		dk = c.dim(0, 2).FloorDiv(hq)
	}
	dv := c.dim(2, 2).FloorDiv(hkv)
	batch, _ := mergeDim(c.dim(0, 0), c.dim(1, 0))
	elem := c.elem(0)
	if c.has(3) {
		elem = c.elem(3)
	}
	state := graph.Shape{batch, hkv, dk, dv}
	if s := c.shape(3); s != nil {
		merged, ok := mergeShapes(state, s)
		if !ok {
			return fmt.Errorf("past state %s should be %s", text(s), text(state))
		}
		state = merged
	}
	c.out(0, c.elem(0), graph.Shape{state[0], c.dim(0, 1), hq.Mul(state[3])})
	c.out(1, elem, state)
	return nil
}

func checkLinearAttention(c *call, h, kv int64) error {
	for i, rank := range []int{3, 3, 3, 4, 3, 3} {
		if err := c.wantRank(i, rank); err != nil {
			return err
		}
	}
	if h <= 0 || kv <= 0 {
		return fmt.Errorf("q_num_heads is %d and kv_num_heads %d; both must be positive", h, kv)
	}
	if h%kv != 0 {
		return fmt.Errorf("q_num_heads %d is no multiple of kv_num_heads %d", h, kv)
	}
	for i, heads := range []int64{h, kv, kv} {
		if n, ok := c.dim(i, 2).Int(); ok && n%heads != 0 {
			return fmt.Errorf("input %d %s does not divide into %d heads", i, text(c.shape(i)), heads)
		}
	}
	ruleName := c.str("update_rule", "gated_delta")
	switch ruleName {
	case "linear", "gated", "delta", "gated_delta":
	default:
		return fmt.Errorf("update_rule %q is unknown", ruleName)
	}
	gated, delta := strings.HasPrefix(ruleName, "gated"), strings.HasSuffix(ruleName, "delta")
	if c.has(4) != gated {
		return fmt.Errorf("update_rule %q and input decay do not fit", ruleName)
	}
	if c.has(5) != delta {
		return fmt.Errorf("update_rule %q and input beta do not fit", ruleName)
	}
	dk, ok := c.dim(1, 2).FloorDiv(graph.Int(kv)).Int()
	if n, ok2 := c.dim(4, 2).Int(); ok2 && ok && n != kv && n != kv*dk {
		return fmt.Errorf("decay %s, for %d heads of size %d", text(c.shape(4)), kv, dk)
	}
	if n, ok := c.dim(5, 2).Int(); ok && n != 1 && n != kv {
		return fmt.Errorf("beta %s, for %d heads", text(c.shape(5)), kv)
	}
	return nil
}

// causalConv: input [B,C,L], weight [C,1,k], optional bias and state
// [B,C,k-1].
func causalConv(c *call) error {
	for i, rank := range []int{3, 3, 1, 3} {
		if err := c.wantRank(i, rank); err != nil {
			return err
		}
	}
	switch act := c.str("activation", "none"); act {
	case "none", "silu", "swish":
	default:
		return fmt.Errorf("activation %q is unknown", act)
	}
	k := c.dim(1, 2)
	if n, ok := k.Int(); ok && n < 1 {
		return fmt.Errorf("the kernel size is %d", n)
	}
	channels, ok := mergeDim(c.dim(0, 1), c.dim(1, 0))
	if !ok {
		return fmt.Errorf("input %s and weight %s differ in channels", text(c.shape(0)), text(c.shape(1)))
	}
	c.out(0, c.elem(0), graph.Shape{c.dim(0, 0), channels, c.dim(0, 2)})
	state := graph.Shape{c.dim(0, 0), channels, k.Sub(graph.Int(1))}
	if s := c.shape(3); s != nil {
		merged, ok := mergeShapes(state, s)
		if !ok {
			return fmt.Errorf("past state %s should be %s", text(s), text(state))
		}
		state = merged
	}
	c.out(1, c.elem(0), state)
	return nil
}
