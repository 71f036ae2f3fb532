package lift

import "github.com/memplan/memplan/graph"

// liftPatterns keeps every ONNX node.
func liftPatterns(g *graph.Graph) (*Lifted, error) {
	b := newBuilder(g, None)
	for i := range g.Nodes {
		b.keep(&g.Nodes[i])
	}
	return b.finish()
}
