package liveness

import (
	"fmt"

	"github.com/memplan/memplan/graph/program"
)

// Check replays a timeline in a naive way, on a set, independently of how it
// was made: what a node reads is live, nothing is allocated or freed twice, and
// at the end of the step only what outlives it is left. The error names the
// node.
func Check(t *Timeline) error {
	p := t.Program
	alive := map[program.StorageID]bool{}
	for id, s := range p.Storages {
		if s.Life == program.Static || s.Life == program.State && !t.First {
			alive[program.StorageID(id)] = true
		}
	}
	at := 0
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Only == program.FirstStep && !t.First || n.Only == program.LaterSteps && t.First || n.Only == program.SecondStep {
			continue
		}
		made := map[program.StorageID]bool{}
		var late []program.StorageID // freed once the call has read everything
		for ; at < len(t.Events) && int(t.Events[at].Node) == i; at++ {
			switch ev := t.Events[at]; {
			case ev.Old:
			case !ev.Free:
				if alive[ev.Storage] {
					return fmt.Errorf("node %d (%s): storage %d allocated while alive", i, n.Op, ev.Storage)
				}
				alive[ev.Storage], made[ev.Storage] = true, true
			case !alive[ev.Storage]:
				return fmt.Errorf("node %d (%s): storage %d freed while not alive", i, n.Op, ev.Storage)
			default:
				late = append(late, ev.Storage)
			}
		}
		for _, id := range n.Reads {
			if !alive[id] {
				return fmt.Errorf("node %d (%s %s): reads storage %d (%s), which is not alive", i, n.Op, n.Name, id, p.Storages[id].Name)
			}
		}
		for _, id := range late {
			delete(alive, id)
		}
	}
	if at != len(t.Events) {
		return fmt.Errorf("%d events belong to no node", len(t.Events)-at)
	}
	for id := range alive {
		if p.Storages[id].Life == program.Step {
			return fmt.Errorf("storage %d (%s) is never freed", id, p.Storages[id].Name)
		}
	}
	return nil
}
