package kernel

// network are the numbers of a recurrent one: its cell (program.CellLSTM), layers,
// directions, 1 with biases, 1 if the batch is the input's first dim.
const network = "cell layers directions biases batch_first"

// The state of an LSTM is two operands, others' is one.
var rnn = []Kernel{
	{Name: "_cudnn_rnn_flatten_weight", Operands: "weights..."},
	{Name: "_cudnn_rnn", Operands: "input state weights...", Scalars: network},
	{Name: "_cudnn_rnn_backward", Operands: "grad? grad_state? input? state weights...", Scalars: network}, // no operand for one that an LSTM has besides: all move on
}
