package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
)

// handoverSocket is the socket in run_dir over which a vipd hands over to one that is started with --replace.
const handoverSocket = "handover.sock"

// errReplaced ends a vipd whose place another one takes.
var errReplaced = errors.New("another vipd takes over")

func (d *Daemon) handoverPath() string { return filepath.Join(d.config.RunDir, handoverSocket) }

// takeOver receives what an earlier process has left for this one: in systemd's descriptor store, or, with Options.Replace,
// over the socket of the vipd that runs, which ends.
func (d *Daemon) takeOver() (err error) {
	queue, err := fromStore()
	if err == nil && queue == nil && d.Replace {
		queue, err = askFor(d.handoverPath())
	}
	if err != nil || queue == nil {
		return err
	}
	if d.inherited, err = queue.All(); err != nil {
		for _, item := range d.inherited {
			item.Close()
		}
		d.inherited = nil
		return fmt.Errorf("taking over from the vipd before this one: %w", err)
	}
	if len(d.inherited) > 0 {
		d.Log.Info("took over sockets and connections of the vipd before this one", "items", len(d.inherited))
	}
	return nil
}
