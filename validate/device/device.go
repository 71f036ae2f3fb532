// Package device is the table of devices that this build can run plans on.
package device

import (
	"errors"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// ErrNoCUDA is what a build without CUDA answers.
var ErrNoCUDA = errors.New("built without CUDA; build with: go install -tags cuda github.com/memplan/memplan/cmd/memplan; or give --device cpu")

// An Entry is one kind of device.
type Entry struct {
	Name string
	Doc  string
	Open func() (validate.Device, error)
}

// Table lists the devices, the default first.
var Table = []Entry{
	{"cuda", "an NVIDIA GPU", openCUDA},
	{"cpu", "the processor, in plain Go: slow, with every kernel, for small models", func() (validate.Device, error) { return cpu.New(), nil }},
}

// Names lists the table's names in its order.
func Names() []string {
	out := make([]string, len(Table))
	for i := range Table {
		out[i] = Table[i].Name
	}
	return out
}

// Find returns an entry by its name, or nil.
func Find(name string) *Entry {
	for i := range Table {
		if Table[i].Name == name {
			return &Table[i]
		}
	}
	return nil
}
