package planner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestShards asks that the jobs of a sweep do every case once, counted from 0 and from 1.
func TestShards(t *testing.T) {
	for n := 1; n <= 5; n++ {
		for first := range 2 {
			did := map[int]int{}
			for i := range n {
				s, err := ParseShard(strings.Join([]string{itoa(first + i), itoa(n)}, "/"), Shard{-1, 0})
				if err != nil {
					t.Fatal(err)
				}
				for c := range 17 {
					if c%s.Of == s.Index {
						did[c]++
					}
				}
			}
			for c := range 17 {
				if did[c] != 1 {
					t.Errorf("%d jobs from %d: case %d is done %d times", n, first, c, did[c])
				}
			}
		}
	}
	for _, bad := range []string{"", "1", "/", "3/2", "-1/2", "1/0", "a/2", "1/b", "auto/2", "1/2/3"} {
		if s, err := ParseShard(bad, Shard{-1, 0}); err == nil {
			t.Errorf("%q is shard %v", bad, s)
		}
	}
	if s, err := ParseShard("auto/4", Shard{6, 0}); err != nil || s != (Shard{2, 4}) {
		t.Errorf("auto/4 of job 6: %v, %v", s, err)
	}
}

func itoa(n int) string { return string(rune('0' + n)) }

func TestSchedulersShard(t *testing.T) {
	for _, c := range []struct {
		env  string
		want Shard
		bad  bool
	}{
		{"", Shard{-1, 0}, false},
		{"SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=8", Shard{3, 8}, false},
		{"SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=4", Shard{0, 4}, false},
		{"SLURM_ARRAY_TASK_ID=14 SLURM_ARRAY_TASK_MIN=2 SLURM_ARRAY_TASK_STEP=4 SLURM_ARRAY_TASK_COUNT=4", Shard{3, 4}, false},
		{"SLURM_ARRAY_TASK_ID=9 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=8", Shard{}, true},
		{"SLURM_ARRAY_TASK_ID=x", Shard{}, true},
		{"JOB_COMPLETION_INDEX=5", Shard{5, 0}, false},
		{"RANK=1 WORLD_SIZE=2", Shard{1, 2}, false},
		{"RANK=2 WORLD_SIZE=2", Shard{}, true},
	} {
		env := func(name string) string {
			for _, kv := range strings.Fields(c.env) {
				if k, v, _ := strings.Cut(kv, "="); k == name {
					return v
				}
			}
			return ""
		}
		if got, err := SchedulersShard(env); (err != nil) != c.bad || got != c.want {
			t.Errorf("%s: %v, %v", c.env, got, err)
		}
	}
}

// TestMatrix asks for one entry a combination, with the settings in order.
func TestMatrix(t *testing.T) {
	f, err := ParseConfigFile("x.yaml", []byte("models:\n- path: a.onnx\n  vram: 8G\n  matrix:\n    precision: [fp32, amp-bf16]\n    batch: [1, 2, 4]\n- path: b.onnx\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range f.Entries {
		got = append(got, f.Entries[i].Path+" "+f.Entries[i].Settings())
	}
	want := "a.onnx vram=8G batch=1 precision=fp32|a.onnx vram=8G batch=1 precision=amp-bf16|a.onnx vram=8G batch=2 precision=fp32|a.onnx vram=8G batch=2 precision=amp-bf16|a.onnx vram=8G batch=4 precision=fp32|a.onnx vram=8G batch=4 precision=amp-bf16|b.onnx "
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("cases\n%s\nwant\n%s", text, want)
	}
	for text, want := range map[string]string{
		"matrix: {batch: 3}":               "want a list",
		"matrix: {batch: []}":              "want a list of values",
		"batch: 2\n  matrix: {batch: [1]}": "none beside the matrix",
		"matrix: {dims: [1]}":              "not a setting with one value",
		"matrix: {batch: [x]}":             "x",
		"matrix: {bach: [1]}":              "did you mean batch",
		"matrix: {batch: [1, 1]}":          "repeats",
		"matrix: [1]":                      "want a mapping",
		"matrix: {batch: [" + many(1001) + "], vram: [" + many(101) + "]}": "more than",
	} {
		if _, err := ParseConfigFile("x.yaml", []byte("models:\n- path: a.onnx\n  "+text+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

func many(n int) string { return strings.TrimSuffix(strings.Repeat("1,", n), ",") }

// TestCaseNames asks that a document's name changes with what its answer depends on
// and with nothing else.
func TestCaseNames(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func(version string) (out []string) {
		f, err := ReadConfigFile(filepath.Join(dir, "c.yaml"), false)
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.NewSweep(version)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.Cases {
			out = append(out, c.Document)
		}
		return out
	}
	write("a.onnx", "one")
	write("c.yaml", "models:\n- path: a.onnx\n  batch: 1\n")
	first := names("1")
	write("c.yaml", "# a comment\nmodels:\n- {path: a.onnx, batch: 2}\n- {path: a.onnx, batch: 1}\n")
	if again := names("1"); again[1] != first[0] || again[0] == first[0] {
		t.Errorf("%v, then %v", first, again)
	}
	if again := names("2"); again[1] == first[0] {
		t.Error("another version has the same name")
	}
	write("a.onnx", "two")
	if again := names("1"); again[1] == first[0] {
		t.Error("another file has the same name")
	}
}
