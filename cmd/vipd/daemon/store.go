package daemon

import (
	"vipd/cmd/internal/config"
	"vipd/store"
	"vipd/store/tomlfile"
)

// source is what the daemon needs of a store.
type source interface {
	store.Source
	store.Reloader
}

// openStore makes the source of services: the node's files and, where the configuration says so, what a fleet shares.
func (d *Daemon) openStore() error {
	log := d.Log.With("component", "store")
	files := tomlfile.New(tomlfile.Options{Main: d.ConfigFile, Log: log})
	if d.config.Store.Kind != config.EtcdStore {
		d.source = files
		return nil
	}
	var err error
	if d.fleet, err = newFleet(d); err != nil {
		return err
	}
	d.source = &store.Joined{Local: files, Fleet: d.fleet.source}
	return nil
}
