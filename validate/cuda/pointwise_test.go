package cuda

import "testing"

func TestOperatorsAreUnique(t *testing.T) {
	for i, op := range Operators {
		if operatorCode(op.Name) != i {
			t.Errorf("%s is listed twice", op.Name)
		}
		if op.Inputs < 1 || op.Inputs > 3 || op.Real == "" {
			t.Errorf("%s: %d operands, %q", op.Name, op.Inputs, op.Real)
		}
	}
}
