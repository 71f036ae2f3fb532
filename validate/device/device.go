// Package device is the table of devices that this build can run plans on.
package device

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// ErrNoCUDA is the error of a build without CUDA.
var ErrNoCUDA = errors.New("built without CUDA")

// ErrUnknown is the error of a name that is not in the table.
var ErrUnknown = errors.New("unknown device")

// An Entry is one kind of device.
type Entry struct {
	Name string
	Doc  string
	Many bool // a machine can have several, numbered from 0: NAME:1
	Open func(ordinal int) (validate.Device, error)
}

// Table lists the devices, the default first.
var Table = []Entry{
	{"cuda", "an NVIDIA GPU", true, openCUDA},
	{"cpu", "the processor, in plain Go: slow, with every kernel, for small models", false, func(int) (validate.Device, error) { return cpu.New(), nil }},
}

// Names lists the table's names in its order.
func Names() []string {
	out := make([]string, len(Table))
	for i := range Table {
		out[i] = Table[i].Name
	}
	return out
}

// Find parses NAME or NAME:N and returns a function that opens that device.
// Whether there are that many shows when it is opened. The error is ErrUnknown
// for a name that is not in the table, or says what is wrong with N.
func Find(text string) (open func() (validate.Device, error), err error) {
	name, number, numbered := strings.Cut(text, ":")
	for i := range Table {
		e := &Table[i]
		if e.Name != name {
			continue
		}
		n := 0
		if numbered {
			if !e.Many {
				return nil, fmt.Errorf("there is one %s: leave :%s out", name, number)
			}
			if n, err = strconv.Atoi(number); err != nil || n < 0 {
				return nil, fmt.Errorf("want %s:N, N counting devices from 0 as the driver does", name)
			}
		}
		return func() (validate.Device, error) { return e.Open(n) }, nil
	}
	return nil, ErrUnknown
}
