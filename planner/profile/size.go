package profile

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Binary units, in bytes.
const (
	KiB int64 = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

// units maps a size's suffix, in lower case, to bytes. A letter alone and a
// letter with "iB" are powers of 1024, a letter with "B" powers of 1000.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"kib", KiB}, {"mib", MiB}, {"gib", GiB}, {"tib", TiB},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", KiB}, {"m", MiB}, {"g", GiB}, {"t", TiB},
	{"b", 1}, {"", 1},
}

// maxSize bounds the length of a size's text in bytes.
const maxSize = 32

// ParseSize parses a size in bytes: "16G" and "16GiB" are 16·2^30, "16GB" is
// 16·10^9, a plain integer is bytes. Letters may be of either case, the number
// may have a fraction ("1.5G"; a rest below one byte is dropped) and a space may
// precede the unit. Negative sizes, those of 2^63 bytes and more and anything
// else are errors.
func ParseSize(s string) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	if text == "" || len(text) > maxSize {
		return 0, sizeError(s)
	}
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		number = strings.TrimRight(number, " ")
		if !decimal(number) {
			return 0, sizeError(s)
		}
		return scale(s, number, u.bytes)
	}
	return 0, sizeError(s)
}

// decimal reports whether s is digits with at most one point among them.
func decimal(s string) bool {
	whole, fraction, point := strings.Cut(s, ".")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return digits(whole) && (!point || digits(fraction))
}

func scale(s, number string, unit int64) (int64, error) {
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, sizeError(s)
	}
	r.Mul(r, new(big.Rat).SetInt64(unit))
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if !n.IsInt64() {
		return 0, fmt.Errorf("size %q: larger than %d bytes", s, int64(math.MaxInt64))
	}
	return n.Int64(), nil
}

func sizeError(s string) error {
	if len(s) > maxSize {
		s = s[:maxSize] + "..."
	}
	return fmt.Errorf("size %q: want a number with an optional unit, such as 16G, 16GiB, 16GB or 17179869184", s)
}

// FormatBytes returns n with four significant digits and a binary unit:
// "1023 B", "1.500 KiB", "31.40 GiB". Bytes below 1 KiB are exact.
func FormatBytes(n int64) string {
	if n > -KiB && n < KiB {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n)/float64(KiB), 0
	names := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	// 1023.95 would print as 1024: it belongs to the next unit.
	for math.Abs(v) >= 1023.5 && unit < len(names)-1 {
		v /= 1024
		unit++
	}
	return strconv.FormatFloat(v, 'f', decimals(v), 64) + " " + names[unit]
}

// decimals returns the number of digits after the point with which v, from 0.99
// to 1024, has four significant digits.
func decimals(v float64) int {
	v = math.Abs(v)
	switch {
	case v < 9.9995:
		return 3
	case v < 99.995:
		return 2
	case v < 999.95:
		return 1
	}
	return 0
}
