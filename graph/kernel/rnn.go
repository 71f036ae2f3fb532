package kernel

// network are the scalars of a recurrent network: its cell (program.CellLSTM),
// layers, directions, 1 with biases, 1 if the batch is the input's first dim.
const network = "cell layers directions biases batch_first"

// An LSTM has two operands as its state, other cells one.
var rnn = []Kernel{
	{Name: "_cudnn_rnn_flatten_weight", Operands: "weights..."},
	{Name: "_cudnn_rnn", Operands: "input state weights...", Scalars: network},
	{Name: "_cudnn_rnn_backward", Operands: "grad? grad_state? input? state weights...", Scalars: network}, // cells other than LSTM omit the second operand of the state, and all later ones move up
}
