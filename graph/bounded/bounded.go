// Package bounded counts what documents ask for before they are decoded, so
// that a small file cannot take much memory.
package bounded

import (
	"fmt"
	"io"
)

// Bytes that decoded JSON takes in memory, at most: an object is a struct of
// one of the documents or a map, a value a number or a string in one.
const (
	costObject = 256
	costArray  = 32
	costValue  = 48

	// MaxDepth is how deep JSON may nest: documents nest less than ten deep.
	MaxDepth = 128
	// Decoded is how many bytes of memory a document may take: two million
	// objects, or ten million numbers.
	Decoded = 512 << 20
)

// JSON is an error for a document that, once decoded, takes more than most
// bytes or nests deeper than MaxDepth. It takes linear time and no memory, and
// does not look whether the document is JSON at all.
func JSON(data []byte, most int64) error {
	cost, depth := int64(0), 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = quoted(data, i)
			continue
		case '{':
			depth++
			cost += costObject
		case '[':
			depth++
			cost += costArray
		case '}', ']':
			depth--
		case ',':
			cost += costValue
		default:
			continue
		}
		if depth > MaxDepth {
			return fmt.Errorf("byte %d: nested more than %d deep", i, MaxDepth)
		}
		if cost > most {
			return fmt.Errorf("byte %d: more objects and values than fit %d bytes of memory", i, most)
		}
	}
	return nil
}

// quoted returns where the string that begins at i ends.
func quoted(data []byte, i int) int {
	for i++; i < len(data) && data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i
}

// ReadAll reads r to its end, an error where that is more than most bytes.
func ReadAll(r io.Reader, most int64) ([]byte, error) {
	return io.ReadAll(Reader(r, most))
}

// Reader reads r, and fails once it has given more than most bytes.
func Reader(r io.Reader, most int64) io.Reader { return &limited{r: r, left: most, most: most} }

type limited struct {
	r          io.Reader
	left, most int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("larger than %d bytes", l.most)
	}
	return n, err
}
