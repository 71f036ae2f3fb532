package layout

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
	"github.com/memplan/memplan/quote"
)

// A column is a column of an instance, by the names that collections give it.
type column struct {
	names []string
	read  func(b *Buffer, text string) error
}

// columns are the columns that are read. Offsets in the input are ignored, like
// hints.
var columns = []column{
	{[]string{"id", "buffer", "buffer_id"}, func(b *Buffer, text string) error { b.ID = text; return nil }},
	{[]string{"lower", "start", "begin"}, func(b *Buffer, text string) error { return number(&b.Lower, text) }},
	{[]string{"upper"}, func(b *Buffer, text string) error { return number(&b.Upper, text) }},
	{[]string{"size"}, func(b *Buffer, text string) error { return number(&b.Size, text) }},
	{[]string{"end"}, func(b *Buffer, text string) error { // the last time, inclusive
		err := number(&b.Upper, text)
		if b.Upper++; err == nil && b.Upper > maxTime {
			err = fmt.Errorf("%q: want a whole number", text)
		}
		return err
	}},
	{[]string{"alignment"}, func(_ *Buffer, text string) error {
		if text != "" && text != "0" && text != "1" {
			return fmt.Errorf("alignment %s: not supported: round the sizes up to it", text)
		}
		return nil
	}},
	{[]string{"gaps"}, func(_ *Buffer, text string) error {
		if text != "" {
			return errors.New("gaps in lifetimes are not supported: list the buffer without them")
		}
		return nil
	}},
	{[]string{"offset", "hint"}, func(*Buffer, string) error { return nil }},
}

// maxTime bounds the times of an instance.
const maxTime = 1 << 62

func number(n *int64, text string) (err error) {
	if *n, err = strconv.ParseInt(text, 10, 64); err != nil || *n > maxTime || *n < -maxTime {
		return fmt.Errorf("%q: want a whole number", text)
	}
	return nil
}

// ReadCSV reads an instance: a header line, then one line for each buffer.
// Errors name the line.
func ReadCSV(r io.Reader) ([]Buffer, error) {
	c := csv.NewReader(bounded.Reader(r, files.Instance.Limit))
	c.TrimLeadingSpace, c.LazyQuotes = true, true
	head, err := c.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: want a header id,lower,upper,size")
	}
	if err != nil {
		return nil, err
	}
	found, err := header(head)
	if err != nil {
		return nil, err
	}
	var list []Buffer
	seen := map[string]int{}
	for {
		row, err := c.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := c.FieldPos(0)
		b := Buffer{}
		for i, text := range row {
			if err := found[i].read(&b, strings.TrimSpace(text)); err != nil {
				return nil, fmt.Errorf("line %d: %s: %w", line, head[i], err)
			}
		}
		if at, ok := seen[b.ID]; ok {
			return nil, fmt.Errorf("line %d: buffer %q is also on line %d", line, b.ID, at)
		}
		seen[b.ID] = line
		list = append(list, b)
	}
}

// header finds the columns of an instance.
func header(head []string) ([]*column, error) {
	var out []*column
	used := map[*column]bool{}
	for i, text := range head {
		name := strings.ToLower(strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")))
		k := slices.IndexFunc(columns, func(c column) bool { return slices.Contains(c.names, name) })
		if k < 0 {
			return nil, fmt.Errorf("line 1: column %d is called %.40q: want a header id,lower,upper,size", i+1, text)
		}
		if used[&columns[k]] && name != "offset" && name != "hint" {
			return nil, fmt.Errorf("line 1: column %q occurs twice", name)
		}
		used[&columns[k]] = true
		out = append(out, &columns[k])
	}
	upper, end := used[&columns[2]], used[&columns[4]]
	if !used[&columns[0]] || !used[&columns[1]] || !used[&columns[3]] || upper == end {
		return nil, errors.New("line 1: want a header id,lower,upper,size")
	}
	return out, nil
}

// WriteCSV writes an instance with its offsets, in the instance's order.
// Identifiers are quoted for spreadsheets (quote.CSV).
func WriteCSV(w io.Writer, list []Buffer, offset []int64) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"id", "lower", "upper", "size", "offset"}}
	for i, b := range list {
		rows = append(rows, []string{quote.CSV(b.ID), strconv.FormatInt(b.Lower, 10), strconv.FormatInt(b.Upper, 10), strconv.FormatInt(b.Size, 10), strconv.FormatInt(offset[i], 10)})
	}
	return c.WriteAll(rows)
}
