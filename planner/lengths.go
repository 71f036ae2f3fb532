package planner

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/files"
)

// lengthsFile reports a value of --dim that is a file of lengths.
func lengthsFile(word string) (name, file string, ok bool) {
	i := strings.LastIndexByte(word, '=')
	if i < 1 || !strings.HasSuffix(word, ".csv") {
		return "", "", false
	}
	return word[:i], word[i+1:], true
}

// Lengths is a distribution of a dimension's sizes.
type Lengths struct {
	values []int64 // ascending
	upto   []int64 // samples of that length or a smaller one
}

// mostSamples bounds the samples of a file, and the sizes of a dimension.
const mostSamples = 1 << 40

// ReadLengths reads a column of lengths, or two columns, length and count, with a comma
// between them. A first line of words is a heading; lines that begin with # are left out.
func ReadLengths(c *Config, path string) (*Lengths, error) {
	data, err := c.door().Read(path, files.Document)
	if err != nil {
		return nil, err
	}
	counts := map[int64]int64{}
	total, first := int64(0), true
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		n, count, err := lengthLine(line)
		if err != nil && first && strings.Trim(line, " ,_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == "" {
			first = false
			continue
		}
		if first = false; err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, i+1, err)
		}
		counts[n] += count
		if total += count; total > mostSamples {
			return nil, fmt.Errorf("%s: line %d: more than %d samples", path, i+1, int64(mostSamples))
		}
	}
	l := &Lengths{}
	for n, count := range counts {
		if count > 0 {
			l.values = append(l.values, n)
		}
	}
	if len(l.values) == 0 {
		return nil, fmt.Errorf("%s: no lengths: want lines such as 512, or 512,40 for 40 samples of it", path)
	}
	slices.Sort(l.values)
	sum := int64(0)
	for _, n := range l.values {
		sum += counts[n]
		l.upto = append(l.upto, sum)
	}
	return l, nil
}

// lengthLine reads LENGTH or LENGTH,COUNT.
func lengthLine(line string) (n, count int64, err error) {
	word, times, some := strings.Cut(line, ",")
	if n, err = strconv.ParseInt(strings.TrimSpace(word), 10, 64); err != nil || n < 1 || n > mostSamples {
		return 0, 0, fmt.Errorf("%q is no length: want lines such as 512, or 512,40 for 40 samples of it", word)
	}
	if !some {
		return n, 1, nil
	}
	if count, err = strconv.ParseInt(strings.TrimSpace(times), 10, 64); err != nil || count < 0 || count > mostSamples {
		return 0, 0, fmt.Errorf("%q is no number of samples", times)
	}
	return n, count, nil
}

// Total is the number of samples.
func (l *Lengths) Total() int64 { return l.upto[len(l.upto)-1] }

// Longest is the largest length.
func (l *Lengths) Longest() int64 { return l.values[len(l.values)-1] }

// draw returns the longest of n samples, drawn with replacement: a length that this share of
// all is at most, by the distribution of the largest of n.
func (l *Lengths) draw(rng *rand.Rand, n int64) int64 {
	share := math.Pow(1-rng.Float64(), 1/float64(n)) // of (0, 1]
	i, _ := slices.BinarySearchFunc(l.upto, share*float64(l.Total()), func(upto int64, want float64) int { return cmp.Compare(float64(upto), want) })
	return l.values[min(i, len(l.values)-1)]
}
