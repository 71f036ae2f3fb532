//go:build cuda

package dnngraph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A Pass is one of a convolution's three.
type Pass int

// The passes.
const (
	Forward Pass = iota
	Data
	Filter
)

// A Descriptor is cuDNN's description of a tensor: sizes and strides in elements,
// and the alignment of its address in bytes.
type Descriptor struct {
	Size, Stride []int64
	Align        int64
}

// A Conv is one pass of a convolution between operand X, weight W and result Y,
// one of which it computes. Groups follow from the sizes.
type Conv struct {
	Pass                  Pass
	Type                  graph.DType
	X, W, Y               Descriptor
	Pad, Stride, Dilation []int64 // one for each spatial dim
	Full                  bool    // float32 in full precision, not in TF32
}

// A Plan is a pass ready to run.
type Plan struct {
	Bytes    int64 // of workspace
	Engine   int64 // cuDNN's number of the engine
	Compiled bool  // whether cuDNN compiles it at its first run
	made     *builder
	plan     descriptor
}

// The types of cudnnDataType_t.
var types = map[graph.DType]int32{graph.Float32: 0, graph.Float64: 1, graph.Float16: 2, graph.BFloat16: 9}

// The names of tensors in a graph, PyTorch's.
var ids = []int64{'x', 'y', 'w'}

// Plan selects the engine of a pass: the first one in cuDNN's lists that is
// deterministic, keeps full precision if c.Full, can be planned and needs at most
// most bytes. The choice depends only on the pass. The error lists why each
// engine was refused.
func (b *Backend) Plan(c *Conv, most int64) (*Plan, error) {
	m := &builder{b: b}
	g := m.graph(c)
	if m.err != nil {
		m.free()
		return nil, m.err
	}
	var refused []string
	for _, mode := range []int32{heurModeInstant, heurModeFallback} {
		configs, err := b.configs(g, mode)
		if err != nil {
			refused = append(refused, err.Error())
		}
		for i, config := range configs {
			p, why := b.try(c, config, most)
			if why == nil {
				p.made.made = append(m.made, append([]descriptor{config}, p.made.made...)...)
				b.destroy(configs[i+1:]...)
				return p, nil
			}
			refused = append(refused, why.Error())
			b.destroy(config)
		}
	}
	m.free()
	return nil, fmt.Errorf("cuDNN: no engine of its graphs runs the pass (%s)", strings.Join(slices.Compact(refused), "; "))
}

// graph is the graph of one convolution.
func (m *builder) graph(c *Conv) descriptor {
	x, w, y := m.tensor("operand", 'x', c, &c.X), m.tensor("weight", 'w', c, &c.W), m.tensor("result", 'y', c, &c.Y)
	compute := types[graph.Float32]
	if c.Type == graph.Float64 {
		compute = types[graph.Float64]
	}
	conv := m.make("a convolution", convolutionDescriptor)
	set(m, conv, attrConvolutionCompType, typeDataType, compute)
	set(m, conv, attrConvolutionConvMode, typeConvolutionMode, int32(crossCorrelation))
	set(m, conv, attrConvolutionSpatialDims, typeInt64, int64(len(c.Stride)))
	set(m, conv, attrConvolutionFilterStrides, typeInt64, c.Stride...)
	set(m, conv, attrConvolutionPrePaddings, typeInt64, c.Pad...)
	set(m, conv, attrConvolutionPostPaddings, typeInt64, c.Pad...)
	set(m, conv, attrConvolutionDilations, typeInt64, c.Dilation...)
	m.finish("the convolution", conv)

	kind := [...]struct{ descriptor, first int }{{convolutionForwardDescriptor, attrOperationForward}, {convolutionBackwardDataDesc, attrOperationBackwardData},
		{convolutionBackwardFilterDesc, attrOperationBackwardFilter}}[c.Pass]
	node := m.make("an operation", kind.descriptor)
	if c.Type == graph.Float64 {
		set(m, node, kind.first+orderAlpha, typeDouble, 1.0)
		set(m, node, kind.first+orderBeta, typeDouble, 0.0)
	} else {
		set(m, node, kind.first+orderAlpha, typeFloat, float32(1))
		set(m, node, kind.first+orderBeta, typeFloat, float32(0))
	}
	set(m, node, kind.first+orderConvolution, typeDescriptor, conv)
	set(m, node, kind.first+orderWeight, typeDescriptor, w)
	set(m, node, kind.first+orderOperand, typeDescriptor, x)
	set(m, node, kind.first+orderResult, typeDescriptor, y)
	m.finish("the operation", node)

	g := m.make("a graph", operationGraphDescriptor)
	if m.b.handle != 0 {
		set(m, g, attrOperationGraphHandle, typeHandle, m.b.handle)
	}
	set(m, g, attrOperationGraphOps, typeDescriptor, node)
	m.finish("the graph", g)
	return g
}

// tensor describes a tensor of a convolution by its number in the graph.
func (m *builder) tensor(what string, id int64, c *Conv, t *Descriptor) descriptor {
	kind, ok := types[c.Type]
	if !ok && m.err == nil {
		m.err = fmt.Errorf("cuDNN: no type for %v", c.Type)
	}
	d := m.make(what, tensorDescriptor)
	set(m, d, attrTensorDataType, typeDataType, kind)
	set(m, d, attrTensorDimensions, typeInt64, t.Size...)
	set(m, d, attrTensorStrides, typeInt64, t.Stride...)
	set(m, d, attrTensorUniqueID, typeInt64, id)
	set(m, d, attrTensorByteAlignment, typeInt64, t.Align)
	m.finish("the "+what, d)
	return d
}

// configs asks for engines, in cuDNN's order. The caller destroys them.
func (b *Backend) configs(g descriptor, mode int32) ([]descriptor, error) {
	m := &builder{b: b}
	defer m.free()
	heur := m.make("a heuristic", engineHeuristicDescriptor)
	set(m, heur, attrEngineHeurOperationGraph, typeDescriptor, g)
	set(m, heur, attrEngineHeurMode, typeHeurMode, mode)
	if b.device != 0 {
		set(m, heur, attrEngineHeurDeviceProp, typeDescriptor, b.device)
	}
	m.finish(fmt.Sprintf("heuristic %d", mode), heur)
	if m.err != nil {
		return nil, m.err
	}
	n, err := get[descriptor](b, heur, attrEngineHeurResults, typeDescriptor, nil)
	if err != nil {
		return nil, err
	}
	list := &builder{b: b}
	for range n {
		list.make("a configuration", engineConfigDescriptor)
	}
	if list.err == nil {
		n, list.err = get(b, heur, attrEngineHeurResults, typeDescriptor, list.made)
	}
	if list.err != nil {
		list.free()
		return nil, list.err
	}
	b.destroy(list.made[n:]...)
	return list.made[:n], nil
}

// try makes a plan of a configuration, or returns why it must not be used.
func (b *Backend) try(c *Conv, config descriptor, most int64) (*Plan, error) {
	p := &Plan{}
	if err := b.inspect(c, config, p); err != nil {
		return nil, err
	}
	m := &builder{b: b}
	d := m.make("a plan", executionPlanDescriptor)
	if b.handle != 0 {
		set(m, d, attrPlanHandle, typeHandle, b.handle)
	}
	set(m, d, attrPlanEngineConfig, typeDescriptor, config)
	if b.device != 0 {
		set(m, d, attrPlanDeviceProp, typeDescriptor, b.device)
	}
	m.finish("the plan", d)
	bytes := []int64{0}
	if m.err == nil {
		_, m.err = get(b, d, attrPlanWorkspaceSize, typeInt64, bytes)
	}
	if m.err == nil && bytes[0] > most {
		m.err = fmt.Errorf("needs %d bytes", bytes[0])
	}
	if m.err != nil {
		m.free()
		return nil, fmt.Errorf("engine %d: %w", p.Engine, m.err)
	}
	p.Bytes, p.plan, p.made = bytes[0], d, m
	return p, nil
}

// inspect reads the notes of a configuration's engine, and returns why it must
// not be used: what filterEngineConfigs excludes (Conv_v8.cpp) with
// deterministic algorithms, where TF32 is allowed unless Full is set.
func (b *Backend) inspect(c *Conv, config descriptor, p *Plan) error {
	m := &builder{b: b}
	defer m.free()
	engine := []descriptor{m.make("an engine", engineDescriptor)}
	if m.err != nil {
		return m.err
	}
	if _, err := get(b, config, attrEngineConfigEngine, typeDescriptor, engine); err != nil {
		return err
	}
	index := []int64{0}
	if _, err := get(b, engine[0], attrEngineGlobalIndex, typeInt64, index); err != nil {
		return err
	}
	numerical, err := notes(b, engine[0], attrEngineNumericalNote, typeNumericalNote)
	if err != nil {
		return err
	}
	behavior, err := notes(b, engine[0], attrEngineBehaviorNote, typeBehaviorNote)
	if err != nil {
		return err
	}
	p.Engine, p.Compiled = index[0], slices.Contains(behavior, noteRuntimeCompilation)
	why := ""
	switch {
	case slices.Contains(numerical, noteNondeterministic):
		why = "is not deterministic"
	case c.Type == graph.Float32 && slices.Contains(numerical, noteDownConvert):
		why = "converts its operands to less precise ones"
	case c.Type == graph.Float32 && c.Full && slices.Contains(numerical, noteTensorCore):
		why = "computes in TF32"
	default:
		return nil
	}
	return fmt.Errorf("engine %d %s", p.Engine, why)
}

// notes reads the notes of an engine.
func notes(b *Backend, engine descriptor, name, kind int) ([]int32, error) {
	list := make([]int32, 32) // cuDNN 9.28 has 10 numerical ones and 5 of behavior
	n, err := get(b, engine, name, kind, list)
	return list[:min(n, len(list))], err
}

// Run starts a plan on the addresses of operand, weight and result; the
// workspace of p.Bytes must stay free until it has run.
func (b *Backend) Run(p *Plan, x, w, y, workspace uint64) error {
	m := &builder{b: b}
	defer m.free()
	pack := m.make("a variant pack", variantPackDescriptor)
	set(m, pack, attrVariantPackDataPointers, typeVoidPtr, uintptr(x), uintptr(y), uintptr(w))
	set(m, pack, attrVariantPackUniqueIDs, typeInt64, ids...)
	set(m, pack, attrVariantPackWorkspace, typeVoidPtr, uintptr(workspace))
	m.finish("the variant pack", pack)
	if m.err != nil {
		return m.err
	}
	return b.execute(p.plan, pack)
}

// Free releases a plan.
func (p *Plan) Free() { p.made.free() }
