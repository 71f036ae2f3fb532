package planner

import (
	"cmp"
	"slices"
)

// A TreeDiff compares the models and plans of two folders, matched by their paths within
// them.
type TreeDiff struct {
	SchemaVersion int         `json:"schemaVersion"`
	Base          string      `json:"base"` // the folders, as given
	Head          string      `json:"head"`
	BaseBytes     int64       `json:"baseBytes"`  // sum of the allocated peaks of those that both have
	HeadBytes     int64       `json:"headBytes"`  //
	DeltaBytes    int64       `json:"deltaBytes"` // HeadBytes less BaseBytes
	Files         []FileDelta `json:"files"`      // by path
}

// A FileDelta is one model or plan of two folders.
type FileDelta struct {
	Path   string     `json:"path"`
	Status FileStatus `json:"status"`
	Diff   *Diff      `json:"diff,omitempty"`  // of one that both folders have
	Side   *DiffSide  `json:"side,omitempty"`  // of one that is in one folder
	Error  string     `json:"error,omitempty"` // why there is neither
}

// A FileStatus says how a file of two folders changed.
type FileStatus string

// The values of FileStatus. Changed means another allocated peak.
const (
	FileSame    FileStatus = "same"
	FileChanged FileStatus = "changed"
	FileAdded   FileStatus = "added"
	FileRemoved FileStatus = "removed"
	FileFailed  FileStatus = "failed"
)

// Add adds a file; files may come in any order.
func (d *TreeDiff) Add(f FileDelta) {
	if f.Diff != nil {
		f.Status = FileSame
		if f.Diff.DeltaBytes != 0 {
			f.Status = FileChanged
		}
		d.BaseBytes, d.HeadBytes = d.BaseBytes+f.Diff.Base.AllocatedBytes, d.HeadBytes+f.Diff.Head.AllocatedBytes
		d.DeltaBytes = d.HeadBytes - d.BaseBytes
	}
	i, _ := slices.BinarySearchFunc(d.Files, f, func(x, y FileDelta) int { return cmp.Compare(x.Path, y.Path) })
	d.Files = slices.Insert(d.Files, i, f)
}

// Failed returns how many files could not be predicted.
func (d *TreeDiff) Failed() (n int) {
	for i := range d.Files {
		if d.Files[i].Status == FileFailed {
			n++
		}
	}
	return n
}

// ExceededIn returns the paths of the models whose peaks grew by more, with "all" where the sum of
// all did.
func (g *Growth) ExceededIn(d *TreeDiff) (out []string) {
	for i := range d.Files {
		if f := &d.Files[i]; f.Diff != nil && g.Exceeded(f.Diff) {
			out = append(out, f.Path)
		}
	}
	if g.Exceeded(&Diff{Base: DiffSide{AllocatedBytes: d.BaseBytes}, DeltaBytes: d.DeltaBytes}) {
		out = append(out, "all")
	}
	return out
}

// Alone is the side of a model that has no other to be compared with.
func Alone(r *Answer) *DiffSide {
	return &DiffSide{Path: r.Model.Path, SHA256: r.Model.SHA256, Batch: r.Config.Batch, AllocatedBytes: r.Peak.AllocatedBytes, Parameters: r.Model.Parameters}
}
