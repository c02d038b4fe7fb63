package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// fleetLink is the connection to etcd, which a fleet shares.
type fleetLink struct {
	*printer
	flags *cli.Context
	// verb is what needs etcd, for messages.
	verb   string
	opened *etcd.Writer // nil means nothing was asked yet
	// members are the URLs of etcd, once it is opened.
	members []string
}

func (f *fleetLink) close() {
	if f.opened != nil {
		_ = f.opened.Close() // what it did has been answered
	}
}

// writer returns what reads and writes the etcd store, which the flags, the environment or the config name. It connects
// when it is first used.
func (f *fleetLink) writer() (*etcd.Writer, error) {
	if f.opened == nil {
		conf, err := f.etcdConfig()
		if err != nil {
			return nil, err
		}
		if f.opened, err = etcd.NewWriter(conf); err != nil {
			return nil, err
		}
		f.members = conf.Endpoints
	}
	return f.opened, nil
}

// named reports whether the command line or the environment names an etcd. Where it does, verbs that usually ask the
// daemon read and write etcd; a socket on the command line wins over an etcd in the environment.
func (f *fleetLink) named() bool {
	url, socket := f.flags.String("etcd"), f.flags.String("socket")
	return url != "" && (socket == "" || socket == os.Getenv("VIPCTL_SOCKET") || url != os.Getenv("VIPCTL_ETCD"))
}

// isStore reports whether services come from etcd: because one is named, or because the config says so. A config that
// can't be read says nothing.
func (f *fleetLink) isStore() bool {
	if f.named() {
		return true
	}
	said, err := f.config()
	return err == nil && said.Store.Kind == config.EtcdStore
}

// takesOverrides reports whether overrides of services in etcd go to etcd.
func (f *fleetLink) takesOverrides() bool {
	return f.named() || f.flags.String("socket") == "" && f.isStore()
}

// fleetConfig is what vipctl reads of the config to find etcd.
type fleetConfig struct {
	Store struct {
		Kind config.StoreKind `toml:"kind"`
	} `toml:"store"`
	Etcd config.Etcd `toml:"etcd"`
}

// config reads the config. Paths in it are relative to its folder.
func (f *fleetLink) config() (fleetConfig, error) {
	said := fleetConfig{Etcd: config.Default().Etcd}
	file := f.flags.String("config")
	if err := readPart(file, &said); err != nil {
		return said, err
	}
	for _, path := range []*string{&said.Etcd.PasswordFile, &said.Etcd.CAFile, &said.Etcd.CertFile, &said.Etcd.KeyFile} {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	return said, nil
}

// etcdConfig joins flags, environment and config.
func (f *fleetLink) etcdConfig() (etcd.Config, error) {
	file := f.flags.String("config")
	said, err := f.config()
	absent, named := errors.Is(err, fs.ErrNotExist) && file == config.DefaultFile, f.flags.String("etcd") != ""
	switch {
	case absent && !named:
		return etcd.Config{}, fmt.Errorf("%q needs etcd, and there is no config at %s to say where it is: name it with --etcd URL,... or VIPCTL_ETCD", f.verb, file)
	case err != nil && !absent && !named:
		return etcd.Config{}, fmt.Errorf("looking for etcd in the daemon's config: %v (--etcd names it)", err)
	case err != nil && !absent:
		f.note("%v; etcd settings that the flags don't give are taken as not set", err)
		said.Etcd = config.Default().Etcd
	case !named && said.Store.Kind != config.EtcdStore:
		return etcd.Config{}, fmt.Errorf("%q is for the etcd store, and %s says that services come from files (store.kind): name etcd with --etcd URL,... or VIPCTL_ETCD", f.verb, file)
	}
	conf, flagged := etcd.Config(said.Etcd), false
	if named {
		conf.Endpoints, flagged = nil, true
		for url := range strings.SplitSeq(f.flags.String("etcd"), ",") {
			conf.Endpoints = append(conf.Endpoints, strings.TrimSpace(url))
		}
	}
	for name, field := range map[string]*string{
		"prefix": &conf.Prefix, "user": &conf.Username, "password-file": &conf.PasswordFile,
		"ca-file": &conf.CAFile, "cert-file": &conf.CertFile, "key-file": &conf.KeyFile,
	} {
		if f.flags.IsSet(name) { // "" takes back what the config says
			*field, flagged = f.flags.String(name), true
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
