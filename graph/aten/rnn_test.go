package aten

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/testdata"
)

// What cuDNN took and kept for 3,035 recurrent networks on an H200
// (scripts/truth/rnn.py); workspaces are compared on the half that the
// coefficients were not found on.
func TestRNNSizes(t *testing.T) {
	types := map[string]graph.DType{"float32": graph.Float32, "float16": graph.Float16, "bfloat16": graph.BFloat16}
	var exact, rows int
	var errs []float64
	sc := bufio.NewScanner(bytes.NewReader(testdata.Unpacked(t, "testdata/rnn.csv.xz")))
	for sc.Scan() {
		var n rnn
		var bias, dropout, ws, reserve int64
		line := strings.ReplaceAll(sc.Text(), ",", " ")
		var d string
		if _, err := fmt.Sscan(line, &n.cell, &n.layers, &n.hidden, &n.input, &n.time, &n.batch, &n.directions, &bias, &dropout, &d, &ws, &reserve); err != nil {
			if rows == 0 {
				continue // the header
			}
			t.Fatal(err)
		}
		rows++
		n.dropout, n.d = dropout == 1, types[d]
		if got := n.reserve(); got == reserve {
			exact++
		} else if got < reserve-96 || got > reserve+96 {
			t.Errorf("%s: keeps %d bytes, measured %d", line, got, reserve)
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%s %d %d %d %d %d %d %s", n.cell, n.layers, n.hidden, n.input, n.time, n.batch, n.directions, d)
		if h.Sum64()%2 == 1 {
			errs = append(errs, math.Abs(float64(n.workspace()-ws)/float64(ws)))
		}
	}
	slices.Sort(errs)
	median, ninety := errs[len(errs)/2], errs[len(errs)*9/10]
	t.Logf("%d of %d reserves exact; workspaces of %d held out: median error %.1f%%, 90%% within %.1f%%, worst %.0f%%", exact, rows, len(errs), 100*median, 100*ninety, 100*errs[len(errs)-1])
	if rows != 3035 || exact < 3000 || median > 0.004 || ninety > 0.06 {
		t.Errorf("%d rows, %d exact, median %.3f, 90%% within %.3f", rows, exact, median, ninety)
	}
}
