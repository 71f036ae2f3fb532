// Package profile holds the tables that turn a graph's needs into a card's:
// devices, runtimes, optimizers and precisions. A row is a fact somebody
// measured or published, and says where; scripts/gpu/measure_profile.py measures
// the rows of a runtime and a card anew.
//
//	Devices      memory, bandwidth, arithmetic rates, CUDA context of a GPU
//	Runtimes     allocator constants, library workspaces, kernel choice of a PyTorch release
//	Optimizers   state per parameter, allocations and frees of step()
//	Precisions   dtypes of parameters and arithmetic
//
// The tables are read-only. Names are looked up without regard to case, an
// unknown one is an error that suggests the nearest.
package profile

import (
	"fmt"
	"slices"
	"strings"
)

// find returns the row called name, by its name or an alias. names gives a
// row's names, the first of them its own.
func find[T any](kind string, rows []T, names func(*T) []string, name string) (*T, error) {
	var known []string
	for i := range rows {
		for _, n := range names(&rows[i]) {
			if strings.EqualFold(n, name) {
				return &rows[i], nil
			}
			known = append(known, n)
		}
	}
	near := nearest(name, known)
	if near == "" {
		near = onlyWith(name, known)
	}
	if near != "" {
		return nil, fmt.Errorf("unknown %s %q: did you mean %s?", kind, name, near)
	}
	own := make([]string, len(rows))
	for i := range rows {
		own[i] = names(&rows[i])[0]
	}
	return nil, fmt.Errorf("unknown %s %q (known: %s)", kind, name, strings.Join(own, ", "))
}

// onlyWith returns the one known name that has a given one in it, as rtx4090
// has 4090; "" if there are none or several.
func onlyWith(name string, known []string) (found string) {
	for _, k := range known {
		if name == "" || !strings.Contains(k, strings.ToLower(name)) {
			continue
		}
		if found != "" {
			return ""
		}
		found = k
	}
	return found
}

// maxName bounds the length in bytes of a name that suggestions are sought for:
// longer ones are not typing errors.
const maxName = 64

// nearest returns the known name with the fewest edits from name, the first
// of several, or "" when more than a third of the letters would change.
func nearest(name string, known []string) string {
	if len(name) > maxName {
		return ""
	}
	name = strings.ToLower(name)
	best, least := "", max(1, len(name)/3)+1
	for _, k := range known {
		if d := distance(name, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of a and b in bytes: the least
// number of insertions, deletions and substitutions. It takes O(|a|·|b|) time.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			edit := diagonal
			if a[i] != b[j] {
				edit++
			}
			diagonal = row[j+1]
			row[j+1] = min(edit, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// ownNames returns the names of all rows without aliases, in table order.
func ownNames[T any](rows []T, names func(*T) []string) []string {
	out := make([]string, 0, len(rows))
	for i := range rows {
		out = append(out, names(&rows[i])[0])
	}
	return slices.Clip(out)
}
