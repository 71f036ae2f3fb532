package infer

import (
	"cmp"
	"slices"
)

// selectBoxes runs NonMaxSuppression on constant boxes and scores and counts
// the boxes it selects.
func selectBoxes(c *call) (count int64, ok bool) {
	boxes, ok1 := c.floatsIn(0)
	scores, ok2 := c.floatsIn(1)
	if !ok1 || !ok2 {
		return 0, false
	}
	dims := tensorIn(c, 1).dims
	limit, overlap, least := 0.0, 0.0, 0.0
	for i, p := range []*float64{&limit, &overlap, &least} {
		if c.has(2 + i) {
			f, ok := c.floatsIn(2 + i)
			if !ok || len(f) != 1 {
				return 0, false
			}
			*p = f[0]
		}
	}
	if int64(len(boxes)) != dims[0]*dims[2]*4 {
		return 0, false
	}
	center := c.int("center_point_box", 0) != 0
	for b := range dims[0] {
		all := corners(boxes[b*dims[2]*4:(b+1)*dims[2]*4], center)
		for k := range dims[1] {
			at := (b*dims[1] + k) * dims[2]
			count += suppress(all, scores[at:at+dims[2]], int(limit), overlap, least, c.has(4))
		}
	}
	return count, true
}

// A box is given by its corners, the smaller coordinates first.
type box struct{ y1, x1, y2, x2 float64 }

func corners(f []float64, center bool) []box {
	out := make([]box, len(f)/4)
	for i := range out {
		p := f[4*i : 4*i+4]
		if center {
			out[i] = box{p[1] - p[3]/2, p[0] - p[2]/2, p[1] + p[3]/2, p[0] + p[2]/2}
		} else {
			out[i] = box{min(p[0], p[2]), min(p[1], p[3]), max(p[0], p[2]), max(p[1], p[3])}
		}
	}
	return out
}

// suppress counts the boxes kept: the best score first, and only boxes that
// overlap no better one too much.
func suppress(boxes []box, scores []float64, limit int, overlap, least float64, useLeast bool) int64 {
	order := make([]int, 0, len(scores))
	for i, s := range scores {
		if !useLeast || s > least {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(scores[j], scores[i]) })
	var kept []box
	for _, i := range order {
		if len(kept) >= limit {
			break
		}
		if !slices.ContainsFunc(kept, func(k box) bool { return k.iou(boxes[i]) > overlap }) {
			kept = append(kept, boxes[i])
		}
	}
	return int64(len(kept))
}

// iou is the area of the intersection over that of the union.
func (a box) iou(b box) float64 {
	h := max(0, min(a.y2, b.y2)-max(a.y1, b.y1))
	w := max(0, min(a.x2, b.x2)-max(a.x1, b.x1))
	both := h * w
	union := (a.y2-a.y1)*(a.x2-a.x1) + (b.y2-b.y1)*(b.x2-b.x1) - both
	if union <= 0 {
		return 0
	}
	return both / union
}
