package aten

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/testdata"
)

// What cuDNN took and kept for 3,035 recurrent networks on an H200
// (scripts/steps/rnn.py): workspaces are PyTorch's blocks of 512 bytes but for a few
// that other kernels ran.
func TestRNNSizes(t *testing.T) {
	types := map[string]graph.DType{"float32": graph.Float32, "float16": graph.Float16, "bfloat16": graph.BFloat16}
	var exact, rows, same int
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
		if off := n.workspace() - ws; off >= -512 && off <= 512 {
			same++
		} else if d != "float16" && (off < -1024 || off > 1024) {
			t.Errorf("%s: a workspace of %d bytes, measured %d", line, n.workspace(), ws)
		}
	}
	t.Logf("%d of %d reserves exact, %d workspaces", exact, rows, same)
	if rows != 3035 || exact < 3000 || same < 3015 {
		t.Errorf("%d rows, %d reserves exact, %d workspaces", rows, exact, same)
	}
}
