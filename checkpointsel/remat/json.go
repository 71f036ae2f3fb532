package remat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"slices"

	"github.com/memplan/memplan/files"
	"github.com/memplan/memplan/graph/bounded"
)

// ReadJSON reads an instance in networkx's node-link form, as the public
// collections of rematerialization graphs use it: an object with "nodes" and
// "links" (or "edges"). Two sets of names are understood:
//
//	node     id, name, cost_cpu, cost_ram, backward   (Checkmate's networks)
//	         name, duration, out_cost, param_cost     (random layered graphs)
//	         work, keep, once                         (ours, optional)
//	edge     source, target                           ("0" and "1" also)
//	graph    name, order (of the nodes' ids), fixed   (all optional)
//
// param_cost counts as work. Without an order the nodes are taken as they
// are listed; it is an error if an edge then runs backwards. Repeated edges
// count once.
func ReadJSON(r io.Reader) (*Instance, error) {
	var doc jsonDoc
	data, err := bounded.ReadAll(r, files.Instance.Limit)
	if err == nil {
		err = bounded.JSON(data, bounded.Decoded)
	}
	if err != nil {
		return nil, fmt.Errorf("rematerialization graph: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := bounded.Explain(dec.Decode(&doc)); err != nil {
		return nil, fmt.Errorf("rematerialization graph: %w", err)
	}
	if doc.Nodes == nil {
		return nil, fmt.Errorf("rematerialization graph: no \"nodes\"")
	}
	return doc.instance()
}

type jsonDoc struct {
	Graph struct {
		Name  string            `json:"name"`
		Order []json.RawMessage `json:"order"`
		Fixed json.Number       `json:"fixed"`
	} `json:"graph"`
	Nodes []jsonNode `json:"nodes"`
	Links []jsonEdge `json:"links"`
	Edges []jsonEdge `json:"edges"`
}

type jsonNode struct {
	ID        json.RawMessage `json:"id"`
	Name      json.RawMessage `json:"name"`
	CostCPU   json.Number     `json:"cost_cpu"`
	CostRAM   json.Number     `json:"cost_ram"`
	Duration  json.Number     `json:"duration"`
	OutCost   json.Number     `json:"out_cost"`
	ParamCost json.Number     `json:"param_cost"`
	Work      json.Number     `json:"work"`
	Backward  bool            `json:"backward"`
	Keep      bool            `json:"keep"`
	Once      bool            `json:"once"`
}

type jsonEdge struct {
	Source json.RawMessage `json:"source"`
	Target json.RawMessage `json:"target"`
	From   json.RawMessage `json:"0"`
	To     json.RawMessage `json:"1"`
}

func (d *jsonDoc) instance() (*Instance, error) {
	in := &Instance{Name: d.Graph.Name}
	listed, err := d.listed()
	if err != nil {
		return nil, err
	}
	order, err := d.order(listed)
	if err != nil {
		return nil, err
	}
	if in.Fixed, err = integer("graph: fixed", d.Graph.Fixed); err != nil {
		return nil, err
	}
	number := make([]int, len(order)) // by index in the list
	for v, i := range order {
		number[i] = v
		n, err := d.Nodes[i].node()
		if err != nil {
			return nil, err
		}
		in.Nodes = append(in.Nodes, n)
	}
	if err := d.edges(in, listed, number); err != nil {
		return nil, err
	}
	return in, in.Validate()
}

// listed returns the index of each node in the list, by id.
func (d *jsonDoc) listed() (map[string]int, error) {
	listed := make(map[string]int, len(d.Nodes))
	for i, n := range d.Nodes {
		id := n.ID
		if id == nil {
			id = n.Name
		}
		if id == nil {
			return nil, fmt.Errorf("nodes[%d]: neither id nor name", i)
		}
		if j, ok := listed[key(id)]; ok {
			return nil, fmt.Errorf("nodes[%d]: id %s is also that of nodes[%d]", i, id, j)
		}
		listed[key(id)] = i
	}
	return listed, nil
}

// order returns the indices in the list in execution order.
func (d *jsonDoc) order(listed map[string]int) ([]int, error) {
	order := make([]int, 0, len(d.Nodes))
	if d.Graph.Order == nil {
		for i := range d.Nodes {
			order = append(order, i)
		}
		return order, nil
	}
	seen := make([]bool, len(d.Nodes))
	for _, id := range d.Graph.Order {
		i, ok := listed[key(id)]
		if !ok || seen[i] {
			return nil, fmt.Errorf("graph: order: %s is unknown or repeated", id)
		}
		seen[i] = true
		order = append(order, i)
	}
	if len(order) != len(d.Nodes) {
		return nil, fmt.Errorf("graph: order names %d of %d nodes", len(order), len(d.Nodes))
	}
	return order, nil
}

func (d *jsonDoc) edges(in *Instance, listed map[string]int, number []int) error {
	for i, e := range append(slices.Clone(d.Links), d.Edges...) {
		from, to := e.Source, e.Target
		if from == nil {
			from, to = e.From, e.To
		}
		u, ok1 := listed[key(from)]
		v, ok2 := listed[key(to)]
		if !ok1 || !ok2 {
			return fmt.Errorf("edge %d: no node %s or no node %s", i, from, to)
		}
		p, q := number[u], number[v]
		if p >= q {
			return fmt.Errorf("edge %d: %s reads %s, which does not come before it", i, in.label(q), in.label(p))
		}
		in.Nodes[q].Preds = append(in.Nodes[q].Preds, p)
	}
	for v := range in.Nodes {
		slices.Sort(in.Nodes[v].Preds)
		in.Nodes[v].Preds = slices.Compact(in.Nodes[v].Preds)
	}
	return nil
}

func (n *jsonNode) node() (Node, error) {
	out := Node{Name: key(n.Name), Backward: n.Backward, Keep: n.Keep, Once: n.Once}
	var param int64
	for _, f := range []struct {
		field string
		to    *int64
		from  []json.Number
	}{
		{"cost", &out.Cost, []json.Number{n.CostCPU, n.Duration}},
		{"size", &out.Size, []json.Number{n.CostRAM, n.OutCost}},
		{"work", &out.Work, []json.Number{n.Work}},
		{"param_cost", &param, []json.Number{n.ParamCost}},
	} {
		for _, x := range f.from {
			v, err := integer(fmt.Sprintf("node %q: %s", out.Name, f.field), x)
			if err != nil {
				return out, err
			}
			*f.to += v
		}
	}
	out.Work += param
	return out, nil
}

// integer parses a number that is whole and within limit, even if written 3.0
// or 3e6. An absent one is 0.
func integer(what string, x json.Number) (int64, error) {
	if x == "" {
		return 0, nil
	}
	f, _, err := big.ParseFloat(x.String(), 10, 128, big.ToNearestEven)
	if err != nil {
		return 0, fmt.Errorf("%s: %s is not a number", what, x)
	}
	v, acc := f.Int64()
	if acc != big.Exact || v < 0 || v > limit/4 {
		return 0, fmt.Errorf("%s: %s is not a whole number from 0 to %d", what, x, int64(limit/4))
	}
	return v, nil
}

// key makes ids comparable: 7 and "7" are the same node.
func key(id json.RawMessage) string {
	return string(bytes.Trim(bytes.TrimSpace(id), `"`))
}
