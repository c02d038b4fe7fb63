package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/store/etcd"
)

// fleetFlags say how etcd is reached. What they leave out comes from [etcd] of the config. There is none for the
// password itself: every user of the host can read a command line.
func fleetFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "etcd", EnvVars: []string{"VIPCTL_ETCD"}, Usage: "etcd's members, `URL,...`; default: what the config says"},
		&cli.StringFlag{Name: "prefix", Usage: "the prefix of all keys, a `PATH` such as /vipd"},
		&cli.StringFlag{Name: "user", Usage: "etcd's user `NAME`"},
		&cli.StringFlag{Name: "password-file", Usage: "the user's password is in this `FILE`"},
		&cli.StringFlag{Name: "ca-file", Usage: "the authorities of etcd's certificates, a `FILE`"},
		&cli.StringFlag{Name: "cert-file", Usage: "the client's certificate, a `FILE`"},
		&cli.StringFlag{Name: "key-file", Usage: "the key of that certificate, a `FILE`"},
	}
}

// etcd returns what reads and writes the etcd store, which the flags, the environment or the config name. It connects
// when it is first used.
func (c *call) etcd() (*etcd.Writer, error) {
	if c.writer == nil {
		conf, err := c.etcdConfig()
		if err != nil {
			return nil, err
		}
		if c.writer, err = etcd.NewWriter(conf); err != nil {
			return nil, err
		}
		c.members = conf.Endpoints
	}
	return c.writer, nil
}

// namesEtcd reports whether the command line or the environment names an etcd. Where it does, verbs that usually ask the
// daemon read and write etcd; a socket on the command line wins over an etcd in the environment.
func (c *call) namesEtcd() bool { return c.flags.String("etcd") != "" && !c.socketWins }

// storesInEtcd reports whether services come from etcd: because one is named, or because the config says so. A config that
// can't be read says nothing.
func (c *call) storesInEtcd() bool {
	if c.namesEtcd() {
		return true
	}
	said, err := c.fleetConfig()
	return err == nil && said.Store.Kind == config.EtcdStore
}

// overridesInEtcd reports whether overrides of services in etcd go to etcd.
func (c *call) overridesInEtcd() bool {
	return c.namesEtcd() || c.flags.String("socket") == "" && c.storesInEtcd()
}

// fleetConfig is what vipctl reads of the config to find etcd.
type fleetConfig struct {
	Store struct {
		Kind config.StoreKind `toml:"kind"`
	} `toml:"store"`
	Etcd config.Etcd `toml:"etcd"`
}

// config reads the config. Paths in it are relative to its folder.
func (c *call) fleetConfig() (fleetConfig, error) {
	said := fleetConfig{Etcd: config.Default().Etcd}
	if err := readPart(c.flags.String("config"), &said); err != nil {
		return said, err
	}
	for _, path := range []*string{&said.Etcd.PasswordFile, &said.Etcd.CAFile, &said.Etcd.CertFile, &said.Etcd.KeyFile} {
		*path = c.besideConfig(*path)
	}
	return said, nil
}

func (c *call) etcdConfig() (etcd.Config, error) {
	file := c.flags.String("config")
	said, err := c.fleetConfig()
	absent, named := errors.Is(err, fs.ErrNotExist) && file == config.DefaultFile, c.flags.String("etcd") != ""
	switch {
	case absent && !named:
		return etcd.Config{}, fmt.Errorf("%q needs etcd, and there is no config at %s to say where it is: name it with --etcd URL,... or VIPCTL_ETCD", c.verbText(), file)
	case err != nil && !absent && !named:
		return etcd.Config{}, fmt.Errorf("looking for etcd in the daemon's config: %v (--etcd names it)", err)
	case err != nil && !absent:
		c.note("%v; etcd settings that the flags don't give are taken as not set", err)
		said.Etcd = config.Default().Etcd
	case !named && said.Store.Kind != config.EtcdStore:
		return etcd.Config{}, fmt.Errorf("%q is for the etcd store, and %s says that services come from files (store.kind): name etcd with --etcd URL,... or VIPCTL_ETCD", c.verbText(), file)
	}
	conf, flagged := etcd.Config(said.Etcd), false
	if named {
		conf.Endpoints, flagged = nil, true
		for url := range strings.SplitSeq(c.flags.String("etcd"), ",") {
			conf.Endpoints = append(conf.Endpoints, strings.TrimSpace(url))
		}
	}
	for name, field := range map[string]*string{
		"prefix": &conf.Prefix, "user": &conf.Username, "password-file": &conf.PasswordFile,
		"ca-file": &conf.CAFile, "cert-file": &conf.CertFile, "key-file": &conf.KeyFile,
	} {
		if c.flags.IsSet(name) { // "" takes back what the config says
			*field, flagged = c.flags.String(name), true
		}
	}
	switch err := conf.Check(); {
	case err != nil && flagged:
		return conf, wrongUse("etcd can't be reached like that (flags, environment, and [etcd] of %s): %v", file, err)
	case err != nil:
		return conf, fmt.Errorf("etcd can't be reached as [etcd] of %s says: %w", file, err)
	}
	return conf, nil
}
