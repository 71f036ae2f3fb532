package profile

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int64
	}{
		{"0", 0},
		{"17179869184", 17179869184},
		{"16G", 16 << 30},
		{"16GiB", 16 << 30},
		{"16GB", 16_000_000_000},
		{"16g", 16 << 30},
		{"16gib", 16 << 30},
		{"16gb", 16_000_000_000},
		{"16 GiB", 16 << 30},
		{" 16G ", 16 << 30},
		{"512", 512},
		{"512B", 512},
		{"1K", 1024},
		{"1kB", 1000},
		{"3M", 3 << 20},
		{"3MB", 3_000_000},
		{"2T", 2 << 40},
		{"2TB", 2_000_000_000_000},
		{"1.5G", 3 << 29},
		{"0.1K", 102}, // 102.4
		{"0.0000000001B", 0},
		{"9223372036854775807", math.MaxInt64},
		{"007", 7},
	} {
		if got, err := ParseSize(tt.in); err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestParseSizeErrors(t *testing.T) {
	for _, in := range []string{
		"", " ", "G", "GiB", "-1", "-16G", "+1", "1e9", "0x10", "16Q", "16GG", "16 G B", "1.", ".5G", "1.2.3", "1,5G", "NaN", "Inf", "1/2", "1_000",
		"16G extra", "16i", "16iB", "9223372036854775808", "8388608T", "99999999999999999999T", strings.Repeat("9", 1<<20), "１６G", "16\x00G",
	} {
		got, err := ParseSize(in)
		if err == nil {
			t.Errorf("ParseSize(%.40q) = %d, want an error", in, got)
			continue
		}
		if len(err.Error()) > 300 || !strings.HasPrefix(err.Error(), "size \"") {
			t.Errorf("ParseSize(%.40q): %.400s", in, err)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for _, tt := range []struct {
		n    int64
		want string
	}{
		{0, "0 B"},
		{1, "1 B"},
		{1023, "1023 B"},
		{1024, "1.000 KiB"},
		{1536, "1.500 KiB"},
		{10 << 10, "10.00 KiB"},
		{100 << 10, "100.0 KiB"},
		{1000 << 10, "1000 KiB"},
		{1023 << 10, "1023 KiB"},
		{1<<20 - 1, "1.000 MiB"}, // 1023.999 KiB would print as 1024
		{1 << 20, "1.000 MiB"},
		{10239, "9.999 KiB"},
		{10240 - 1, "9.999 KiB"},
		{102399, "100.0 KiB"}, // 99.999
		{1023<<10 + 600, "1.000 MiB"},
		{16 << 30, "16.00 GiB"},
		{33715493273, "31.40 GiB"},
		{1 << 40, "1.000 TiB"},
		{math.MaxInt64, "8.000 EiB"},
		{math.MinInt64, "-8.000 EiB"},
		{-1, "-1 B"},
		{-1536, "-1.500 KiB"},
	} {
		if got := FormatBytes(tt.n); got != tt.want {
			t.Errorf("FormatBytes(%d) = %q, want %q", tt.n, got, tt.want)
		}
	}
}

// What FormatBytes writes, read back without ParseSize, is within half a unit
// of the fourth significant digit.
func TestFormatBytesPrecision(t *testing.T) {
	factor := map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		n := int64(rng.Uint64() >> (1 + rng.IntN(63)))
		number, unit, _ := strings.Cut(FormatBytes(n), " ")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			t.Fatal(err)
		}
		if diff := math.Abs(v*factor[unit] - float64(n)); diff > float64(n)*0.5e-3 {
			t.Errorf("FormatBytes(%d) = %s %s, off by %g", n, number, unit, diff)
		}
		if digits := len(strings.Trim(strings.ReplaceAll(number, ".", ""), "-")); unit != "B" && digits != 4 {
			t.Errorf("FormatBytes(%d) = %s %s has %d digits", n, number, unit, digits)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"16G", "16GiB", "16GB", "17179869184", "1.5 m", "", "-1", "9e99", "999999999999T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if n < 0 {
			t.Fatalf("ParseSize(%q) = %d", s, n)
		}
		if again, err := ParseSize(strconv.FormatInt(n, 10)); err != nil || again != n {
			t.Fatalf("ParseSize(%d) = %d, %v", n, again, err)
		}
	})
}
