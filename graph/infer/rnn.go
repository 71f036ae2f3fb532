package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// recurrent is RNN, GRU (gates 3) and LSTM (gates 4): X [seq, batch, in], W
// [dirs, gates*hidden, in], R [dirs, gates*hidden, hidden]. Output 0 holds
// all steps, the others the last one. With layout 1 the batch comes first.
func recurrent(gates int64) rule {
	return func(c *call) error {
		if r := c.rank(0); r >= 0 && r != 3 {
			return fmt.Errorf("input %s does not have 3 dims", text(c.shape(0)))
		}
		for i := 1; i < 3; i++ {
			if err := c.wantRank(i, 3); err != nil {
				return err
			}
		}
		hidden, err := hiddenSize(c, gates)
		if err != nil {
			return err
		}
		dirs := graph.Int(1)
		if c.str("direction", "forward") == "bidirectional" {
			dirs = graph.Int(2)
		}
		if _, ok := mergeDim(c.dim(0, 2), c.dim(1, 2)); !ok {
			return fmt.Errorf("input %s and weight %s differ in input size", text(c.shape(0)), text(c.shape(1)))
		}
		seq, batch := c.dim(0, 0), c.dim(0, 1)
		all, last := graph.Shape{seq, dirs, batch, hidden}, graph.Shape{dirs, batch, hidden}
		if c.int("layout", 0) != 0 {
			batch, seq = seq, batch
			all, last = graph.Shape{batch, seq, dirs, hidden}, graph.Shape{batch, dirs, hidden}
		}
		if c.ver < 7 && c.int("output_sequence", 0) == 0 && !c.wanted(0) {
			all = nil
		}
		if err := checkInitial(c, last); err != nil {
			return err
		}
		c.out(0, c.elem(0), all)
		c.out(1, c.elem(0), last)
		c.out(2, c.elem(0), last)
		return nil
	}
}

func hiddenSize(c *call, gates int64) (graph.Dim, error) {
	n := c.int("hidden_size", 0)
	d := c.dim(2, 2)
	if !d.Known() {
		d = c.dim(1, 1).FloorDiv(graph.Int(gates))
	}
	if n <= 0 {
		return d, nil
	}
	if m, ok := d.Int(); ok && m != n {
		return d, fmt.Errorf("hidden_size is %d, the weights %s, %s have %d", n, text(c.shape(1)), text(c.shape(2)), m)
	}
	return graph.Int(n), nil
}

// checkInitial compares the initial states, inputs 5 and 6, with the shape of
// the last states.
func checkInitial(c *call, last graph.Shape) error {
	for i := 5; i <= 6; i++ {
		if s := c.shape(i); s != nil {
			if _, ok := mergeShapes(s, last); !ok {
				return fmt.Errorf("initial state %s, input %d, should be %s", text(s), i, text(last))
			}
		}
	}
	return nil
}
