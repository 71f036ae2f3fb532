package cpu

import (
	"testing"

	contract "github.com/memplan/memplan/graph/kernel"
)

// TestTable: the device has a function for each kernel of the table that is not refused, and
// no others.
func TestTable(t *testing.T) {
	for i := range contract.Table {
		k := &contract.Table[i]
		if _, ok := kernels[k.Name]; ok == (k.Refused != "") {
			t.Errorf("%s: refused for %q, on the device: %v", k.Name, k.Refused, ok)
		}
	}
	for name := range kernels {
		if contract.Find(name) == nil {
			t.Errorf("%s is in no row", name)
		}
	}
}
