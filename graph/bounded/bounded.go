// Package bounded estimates the memory that a document takes before it is
// decoded, so that a small file cannot take much.
package bounded

import (
	"fmt"
	"io"
)

// Upper bounds on the bytes of memory of decoded JSON: an object is a struct of
// one of the documents or a map, a value is a number or a string in one.
const (
	costObject = 256
	costArray  = 32
	costValue  = 48

	// MaxDepth is the deepest nesting of JSON that is read; documents nest less
	// than ten deep.
	MaxDepth = 128
	// Decoded is the largest memory of a decoded document, in bytes: two
	// million objects, or ten million numbers.
	Decoded = 512 << 20
)

// JSON returns an error if a document, once decoded, takes more than most bytes
// or nests deeper than MaxDepth. It takes linear time and no memory, and does
// not check the syntax.
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

// quoted returns the end of the string that begins at i.
func quoted(data []byte, i int) int {
	for i++; i < len(data) && data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i
}

// ReadAll reads all of r; more than most bytes are an error.
func ReadAll(r io.Reader, most int64) ([]byte, error) {
	return io.ReadAll(Reader(r, most))
}

// Reader reads r, and fails once it has returned more than most bytes.
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
