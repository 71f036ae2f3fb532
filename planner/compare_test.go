package planner

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// Each way of a comparison is the answer to its own question.
func TestCompare(t *testing.T) {
	m, err := Open(filepath.Join("..", "models", "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Batch: 4096, VRAM: 3 << 30, Headroom: "0"}
	c, err := m.CompareCheckpoints(t.Context(), cfg, []string{"none", "sqrt", everyBlock})
	if err != nil {
		t.Fatal(err)
	}
	most, fastest := 0.0, ""
	for i, way := range []string{"none", "sqrt", "all"} {
		own := cfg
		own.Checkpoint = way
		r, err := m.Analyze(t.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		w := c.Ways[i]
		if w.ProcessBytes != r.Peak.ProcessBytes || w.StepMs != r.Time.StepMs || *w.Fits != *r.Fits {
			t.Errorf("%s: %+v, alone %+v %+v", way, w, r.Peak, r.Time)
		}
		if *r.Fits && r.Time.SamplesPerSecond > most {
			most, fastest = r.Time.SamplesPerSecond, w.Name
		}
	}
	if c.Fastest != fastest {
		t.Errorf("the fastest is %q, want %q", c.Fastest, fastest)
	}
	if _, err := m.CompareCheckpoints(t.Context(), cfg, []string{"sqrt", "sqrt"}); err == nil {
		t.Error("one way twice is no error")
	}
}

// What ways share changes no answer: the largest batch and the checkpoints for it are those of
// each question by itself.
func TestCompareShares(t *testing.T) {
	testdata.Sequential(t)
	m := openSmall(t, "vgg11_bn")
	for _, batch := range []int64{0, 14} {
		cfg := Config{Batch: batch, VRAM: 4 << 30}
		ways := []string{"none", "sqrt", everyBlock, "segments", "auto"}
		c, err := m.CompareCheckpoints(t.Context(), cfg, ways)
		if err != nil {
			t.Fatal(err)
		}
		for i, way := range []string{"none", "sqrt", "all", "segments", "auto"} {
			own := cfg
			own.Checkpoint = way
			want, err := openSmall(t, "vgg11_bn").compared(t.Context(), own)
			if want.Name = ways[i]; err != nil || !reflect.DeepEqual(c.Ways[i], want) {
				t.Errorf("%+v, alone %+v, %v", c.Ways[i], want, err)
			}
		}
	}
	if m.shared != nil {
		t.Error("the model goes on sharing")
	}
}

// The cheapest card has the least price for a number of samples, not for an hour.
func TestCompareCards(t *testing.T) {
	m, err := Open(filepath.Join("..", "models", "mlp.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "prices.csv")
	if err := os.WriteFile(path, []byte("# an hour\nt4, 0.5\nh100-sxm, 0.6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Batch: 4096}
	prices, err := ReadPrices(&cfg, path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.CompareCards(t.Context(), cfg, []string{"t4", "h100", "a10"}, prices)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range c.Ways {
		if want := prices[w.Name] * 1e6 / (3600 * w.SamplesPerSecond); math.Abs(w.PerMillion-want) > 1e-6 {
			t.Errorf("%s costs %v for a million samples, want %v", w.Name, w.PerMillion, want)
		}
	}
	if c.Cheapest != "h100" || c.Ways[2].PerHour != 0 {
		t.Errorf("%+v", c)
	}
	for text, want := range map[string]string{"t4\n": "wrong number of fields", "t5,1\n": "t5", "t4,free\n": "no price", "t4,-1\n": "no price"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPrices(&cfg, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
