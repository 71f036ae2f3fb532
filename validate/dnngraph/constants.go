//go:build cuda

package dnngraph

// What cudnn_graph.h of cuDNN 9.28 calls these numbers; 8 and 9 have the same
// ones. A build needs no header of cuDNN's.

// Kinds of descriptors, cudnnBackendDescriptorType_t.
const (
	convolutionDescriptor         = 1
	engineDescriptor              = 2
	engineConfigDescriptor        = 3
	engineHeuristicDescriptor     = 4
	executionPlanDescriptor       = 5
	convolutionForwardDescriptor  = 10
	convolutionBackwardFilterDesc = 11
	convolutionBackwardDataDesc   = 12
	operationGraphDescriptor      = 15
	variantPackDescriptor         = 16
	tensorDescriptor              = 17
	devicePropDescriptor          = 38
)

// Names of attributes, cudnnBackendAttributeName_t.
const (
	attrConvolutionCompType       = 100
	attrConvolutionConvMode       = 101
	attrConvolutionDilations      = 102
	attrConvolutionFilterStrides  = 103
	attrConvolutionPostPaddings   = 104
	attrConvolutionPrePaddings    = 105
	attrConvolutionSpatialDims    = 106
	attrEngineHeurMode            = 200
	attrEngineHeurOperationGraph  = 201
	attrEngineHeurResults         = 202
	attrEngineHeurDeviceProp      = 204
	attrEngineConfigEngine        = 300
	attrPlanHandle                = 400
	attrPlanEngineConfig          = 401
	attrPlanWorkspaceSize         = 402
	attrPlanDeviceProp            = 407
	attrOperationForward          = 700 // the first of six: alpha, beta, convolution, weight, operand, result
	attrOperationBackwardData     = 706 // the same six
	attrOperationBackwardFilter   = 712 // the same six
	attrOperationGraphHandle      = 800
	attrOperationGraphOps         = 801
	attrTensorByteAlignment       = 900
	attrTensorDataType            = 901
	attrTensorDimensions          = 902
	attrTensorStrides             = 903
	attrTensorUniqueID            = 906
	attrVariantPackUniqueIDs      = 1000
	attrVariantPackDataPointers   = 1001
	attrVariantPackWorkspace      = 1003
	attrEngineGlobalIndex         = 1301
	attrEngineNumericalNote       = 1303
	attrEngineBehaviorNote        = 1305
	attrDevicePropRepresentation  = 2702
	orderAlpha, orderBeta         = 0, 1 // within the six
	orderConvolution, orderWeight = 2, 3
	orderOperand, orderResult     = 4, 5
)

// Types of attributes, cudnnBackendAttributeType_t.
const (
	typeHandle          = 0
	typeDataType        = 1
	typeInt64           = 3
	typeFloat           = 4
	typeDouble          = 5
	typeVoidPtr         = 6
	typeConvolutionMode = 7
	typeHeurMode        = 8
	typeNumericalNote   = 11
	typeDescriptor      = 15
	typeBehaviorNote    = 19
	typeChar            = 24
)

// Values of attributes.
const (
	heurModeInstant        = 0 // cudnnBackendHeurMode_t
	heurModeFallback       = 2
	crossCorrelation       = 1 // cudnnConvolutionMode_t
	noteTensorCore         = 0 // cudnnBackendNumericalNote_t
	noteDownConvert        = 1
	noteNondeterministic   = 4
	noteRuntimeCompilation = 0 // cudnnBackendBehaviorNote_t
)
