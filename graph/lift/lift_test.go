package lift

import "testing"

func TestParseFX(t *testing.T) {
	c, err := parseFX(`%conv2d_10 : [num_users=1] = call_function[target=torch.ops.aten.conv2d.default](args = (%relu_8, %p_w, None, [2, 2], [1, 1]), kwargs = {dtype: torch.int64, scale: 0.125})`)
	if err != nil {
		t.Fatal(err)
	}
	if c.name != "conv2d_10" || c.target != "aten.conv2d.default" || len(c.args) != 7 || c.args[6].f != 0.125 || c.args[5].s != "torch.int64" || c.args[3].list[1].i != 2 {
		t.Errorf("got %+v", c)
	}
	for _, bad := range []string{"", "%x", "%x : [target=y](args = (%a", "%x : [target=y](args = (((((((((((((((((((((((((((((((((((((((((((((((((((((((((("} {
		if _, err := parseFX(bad); err == nil {
			t.Errorf("parseFX(%q) succeeded", bad)
		}
	}
}
