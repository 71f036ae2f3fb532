package cuda

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/validate"
)

// host is a program that takes steps by the rules of optimizer.cuh: it reads a
// kind, how many numbers and states there are, those, an element and its
// gradient, and prints what becomes of them.
const host = `#include <stdio.h>
#include "optimizer.cuh"
int main() {
  int kind, n, states;
  while (scanf("%d %d %d", &kind, &n, &states) == 3) {
    float c[8] = {0}, s[3] = {0}, p, g;
    for (int i = 0; i < n; i++) if (scanf("%f", c + i) != 1) return 1;
    for (int i = 0; i < states; i++) if (scanf("%f", s + i) != 1) return 1;
    if (scanf("%f %f", &p, &g) != 2) return 1;
    printf("%.9g", optimizer_step(kind, c, p, g, s));
    for (int i = 0; i < states; i++) printf(" %.9g", s[i]);
    printf("\n");
  }
}
`

// TestMoreRules compiles the updates for the processor and takes PyTorch's steps
// with them.
func TestMoreRules(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to compile the updates with")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "host.c"), filepath.Join(dir, "host")
	if err := os.WriteFile(source, []byte(host), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-I", "kernels", "-o", program, source, "-lm").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := validate.ReadNPZ(filepath.Join("..", "cpu", "testdata", "optimizers.npz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range profile.Optimizers {
		m := optimizerRules[o.Name]
		if m == nil {
			continue
		}
		t.Run(o.Name, func(t *testing.T) {
			for i := 0; data[fmt.Sprintf("start:%d", i)] != nil; i++ {
				p := append([]float32{}, data[fmt.Sprintf("start:%d", i)].Values...)
				states := make([][]float32, len(p))
				for j := range states {
					states[j] = make([]float32, len(m.states))
				}
				for step := 1; data[fmt.Sprintf("grad:%d:%d", i, step)] != nil; step++ {
					hostStep(t, program, m, step, p, data[fmt.Sprintf("grad:%d:%d", i, step)].Values, states)
					want := data[fmt.Sprintf("%s:%d:%d", o.Name, i, step)]
					if want == nil {
						continue
					}
					if d := validate.Difference(&validate.Array{Shape: want.Shape, DType: want.DType, Values: p}, want); d > 2e-6 {
						t.Errorf("step %d, parameter %d differs by %.3g of its largest number", step, i, d)
					}
				}
			}
		})
	}
}

// hostStep takes one step.
func hostStep(t *testing.T, program string, m *optimizerRule, step int, p, g []float32, states [][]float32) {
	t.Helper()
	var in bytes.Buffer
	numbers := m.numbers(step)
	for i := range p {
		fmt.Fprintln(&in, m.kind, len(numbers), len(m.states))
		for _, c := range numbers {
			fmt.Fprintln(&in, float32(c))
		}
		for _, s := range states[i] {
			fmt.Fprintln(&in, s)
		}
		fmt.Fprintln(&in, p[i], g[i])
	}
	c := exec.Command(program)
	c.Stdin = &in
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(out)
	for i := range p {
		to := []any{&p[i]}
		for j := range states[i] {
			to = append(to, &states[i][j])
		}
		if _, err := fmt.Fscan(r, to...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMoreKernels: every update has its kernel, with as many states.
func TestMoreKernels(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("kernels", "optimizer.cu"))
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range optimizerRules {
		if k := regexp.MustCompile(fmt.Sprintf(`(?m)^MORE\(%s, \w+, %d\)$`, m.kernel, len(m.states))); !k.Match(source) {
			t.Errorf("%s: no kernel %s of %d states", name, m.kernel, len(m.states))
		}
	}
}
