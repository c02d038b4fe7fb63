package daemon

import (
	"errors"
	"fmt"
	"path/filepath"

	"vipd/cmd/internal/netlock"
)

// claimNamespace acquires the lock on the network namespace. A process without the privilege to
// change the namespace needs no lock.
func (d *Daemon) claimNamespace() (err error) {
	if !netlock.Needed() {
		return nil
	}
	self := netlock.Holder{Config: absolute(d.ConfigFile), RunDir: absolute(d.config.RunDir)}
	d.namespace, err = netlock.Acquire(self)
	var held *netlock.HeldError
	var foreign *netlock.ForeignError
	switch {
	case err == nil:
		d.opened = append(d.opened, d.namespace)
		return nil
	case errors.As(err, &foreign):
		d.Log.Warn("continuing without the network namespace's lock", "err", err)
		return nil
	case !errors.As(err, &held):
		return err
	case !held.Holder.IsDaemon():
		return fmt.Errorf("%w: start vipd again when it has finished", err)
	case held.Holder.RunDir == self.RunDir:
		return configError{fmt.Errorf("%w: stop it, or replace it with --replace", err)}
	default:
		return configError{fmt.Errorf("%w: stop that vipd, or start vipd with the same configuration and --replace", err)}
	}
}

// absolute returns the absolute form of path, or path itself if this process has no working
// directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
