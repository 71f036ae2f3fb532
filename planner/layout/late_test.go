package layout

import (
	"context"
	"testing"
)

// Where time ends before the first layout is complete, there is one all the
// same, with the offsets that the checker accepts.
func TestLateLayout(t *testing.T) {
	list := make([]Buffer, 3*unhurried)
	for i := range list {
		list[i] = Buffer{ID: string(rune(i)), Lower: 0, Upper: int64(1 + i%7), Size: int64(1 + i%5)}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, err := Solve(ctx, list, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(list, r.Offset, r.Height); err != nil || r.Height < r.Bound {
		t.Errorf("height %d, bound %d: %v", r.Height, r.Bound, err)
	}
}
