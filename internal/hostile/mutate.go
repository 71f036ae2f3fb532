//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// mutateBytes changes a file as bytes.
func mutateBytes(r *rand.Rand, data []byte) []byte {
	data = slices.Clone(data)
	if len(data) == 0 {
		return []byte{byte(r.Uint32())}
	}
	at := r.IntN(len(data))
	end := min(len(data), at+1+r.IntN(64))
	switch r.IntN(9) {
	case 0: // bits
		for range 1 + r.IntN(8) {
			data[r.IntN(len(data))] ^= 1 << r.IntN(8)
		}
	case 1:
		return data[:at]
	case 2:
		return data[at:]
	case 3: // a part again and again
		return slices.Concat(data[:end], bytes.Repeat(data[at:end], 1+r.IntN(100)), data[end:])
	case 4:
		return slices.Delete(data, at, end)
	case 5:
		return slices.Insert(data, at, []byte(hostileName(r))...)
	case 6: // a varint or a length that lies
		return slices.Concat(data[:at], binary.AppendUvarint(nil, uint64(pick(r, hostileInts))), data[at:])
	case 7:
		for i := at; i < end; i++ {
			data[i] = byte(r.Uint32())
		}
	case 8:
		return slices.Insert(data, at, bytes.Repeat([]byte{0xff}, 1+r.IntN(20))...)
	}
	return data
}

// A spot is one value of a JSON document.
type spot struct {
	key string // "" in an array
	get func() any
	set func(any)
	del func()
}

// spots lists the values of a document, in the order of their keys.
func spots(v any, out []spot) []spot {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out = append(out, spot{key, func() any { return v[key] }, func(x any) { v[key] = x }, func() { delete(v, key) }})
			out = spots(v[key], out)
		}
	case []any:
		for i := range v {
			out = append(out, spot{"", func() any { return v[i] }, func(x any) { v[i] = x }, func() { v[i] = nil }})
			out = spots(v[i], out)
		}
	}
	return out
}

// mutateJSON changes a document's values: numbers, strings, kinds, keys.
func (b *builder) mutateJSON(data []byte) []byte {
	var doc any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&doc) != nil {
		return mutateBytes(b.r, data)
	}
	for range 1 + b.r.IntN(4) {
		all := spots(doc, nil)
		if len(all) == 0 {
			break
		}
		b.mutateSpot(pick(b.r, all))
	}
	out, err := json.Marshal(doc)
	b.check(err)
	// What Marshal cannot write stands in the document as a text.
	out = bytes.ReplaceAll(out, []byte(`"@raw NaN"`), []byte("NaN"))
	out = bytes.ReplaceAll(out, []byte(`"@raw deep"`), []byte(strings.Repeat("[", 20000)))
	return bytes.ReplaceAll(out, []byte(`"@raw twice"`), []byte(`{"a":1,"a":2,"path":1,"path":"x"}`))
}

func (b *builder) mutateSpot(s spot) {
	if _, ok := s.get().(string); ok && b.chance(2) {
		s.set(pick(b.r, []func() any{
			func() any { return hostileName(b.r) },
			func() any { return b.outside(b.canary()) },
			func() any { return strings.Repeat("long", 1<<b.r.IntN(18)) },
		})())
		return
	}
	if list, ok := s.get().([]any); ok && len(list) > 0 && b.chance(2) {
		for range 1 << b.r.IntN(12) {
			list = append(list, list[b.r.IntN(len(list))])
		}
		s.set(copied(list))
		return
	}
	switch b.r.IntN(7) {
	case 0:
		s.set(json.Number(itoa(pick(b.r, hostileInts))))
	case 1:
		s.set(json.Number(pick(b.r, []string{"1e308", "1e999", "-0", "0.5", "1e-999", "99999999999999999999999999", "1" + strings.Repeat("0", 5000)})))
	case 2:
		s.set(pick(b.r, []any{nil, true, "@raw NaN", "@raw deep", "@raw twice", []any{}, map[string]any{}, []any{nil}, ""}))
	case 3:
		s.set(hostileName(b.r))
	case 4:
		s.del()
	case 5:
		s.set(map[string]any{hostileName(b.r): s.get()})
	case 6:
		s.set([]any{s.get(), s.get()})
	}
}

// copied is a document of its own: what stands in it twice may change once.
func copied(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = copied(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = copied(e)
		}
		return out
	}
	return v
}
