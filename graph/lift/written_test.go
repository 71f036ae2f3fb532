package lift

import "testing"

// TestWritten reads what PyTorch calls in place from lines of Python.
func TestWritten(t *testing.T) {
	for _, c := range []struct {
		text, op     string
		method, flag bool
	}{
		{"y.relu_()", "relu", true, false},
		{"torch.relu_(y)", "relu", true, false},
		{"z.add_(y).mul_(0.5)", "add", true, false},
		{"z.add_(y).mul_(0.5)", "mul", true, false},
		{"z = z.add_(y) + x", "add", false, false},
		{"z = z.add_(y).add(x)", "add", false, false},
		{"z = z.add(y)", "add", false, false},
		{"z = self.relu_(z)", "relu", true, false}, // a method of that name does so
		{"z = my_add_(z)", "add", false, false},
		{"F.relu(z, inplace=True)", "relu", false, true},
		{"z = F.relu(z, inplace = True)", "relu", false, true},
		{"z = F.relu(z, inplace=self.inplace)", "relu", false, false},
		{"z = F.relu(F.relu(z), inplace=True)", "relu", false, false},
		{"z = F.relu(z)", "relu", false, false},
	} {
		if got := writesMethod(c.text, c.op); got != c.method {
			t.Errorf("%q: %s_: %v, want %v", c.text, c.op, got, c.method)
		}
		if got := writesFlag(c.text, c.op); got != c.flag {
			t.Errorf("%q: %s with inplace=True: %v, want %v", c.text, c.op, got, c.flag)
		}
	}
}
