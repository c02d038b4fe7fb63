package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
)

// fleetFlags configure the connection to etcd. All other settings come from [etcd] in the
// configuration. There is no flag for the password itself, because every user on the host can read
// command lines.
func fleetFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "etcd", EnvVars: []string{"VIPCTL_ETCD"}, Usage: "connect to etcd's members at `URL,...`; default: from the config"},
		&urfave.StringFlag{Name: "prefix", Usage: "use `PATH`, such as /vipd, as the prefix of all keys"},
		&urfave.StringFlag{Name: "user", Usage: "log in to etcd as the user `NAME`"},
		&urfave.StringFlag{Name: "password-file", Usage: "read the user's password from `FILE`"},
		&urfave.StringFlag{Name: "ca-file", Usage: "trust the CA certificates in `FILE` for etcd"},
		&urfave.StringFlag{Name: "cert-file", Usage: "read the client's certificate from `FILE`"},
		&urfave.StringFlag{Name: "key-file", Usage: "read the client's private key from `FILE`"},
	}
}

// Etcd returns the client for the etcd cluster that the flags, the environment or the configuration
// name. The client connects when it is first used.
func (c *Call) Etcd() (*etcd.Store, error) {
	if c.Writer == nil {
		conf, err := c.EtcdConfig()
		if err != nil {
			return nil, err
		}
		if c.Writer, err = etcd.NewStore(conf); err != nil {
			return nil, err
		}
		c.Members = conf.Endpoints
	}
	return c.Writer, nil
}

// NamesEtcd reports whether the command line or the environment names an etcd cluster. If so, verbs
// that would otherwise use the daemon also use etcd. A socket on the command line overrides an etcd
// address from the environment.
func (c *Call) NamesEtcd() bool { return c.Flags.String("etcd") != "" && !c.socketWins }

// StoresInEtcd reports whether services are in etcd: either a flag or the environment names an etcd
// cluster, or the configuration selects etcd.
func (c *Call) StoresInEtcd() bool {
	if c.NamesEtcd() {
		return true
	}
	conf, err := c.fleetConfig()
	return err == nil && conf.Store.Kind == config.EtcdStore
}

// OverridesInEtcd reports whether overrides for services in etcd are written to etcd.
func (c *Call) OverridesInEtcd() bool {
	return c.NamesEtcd() || c.Flags.String("socket") == "" && c.StoresInEtcd()
}

// fleetConfig is the part of the configuration that vipctl needs to find etcd.
type fleetConfig struct {
	Node  string `toml:"node"`
	Store struct {
		Kind config.StoreKind `toml:"kind"`
	} `toml:"store"`
	Etcd      config.Etcd `toml:"etcd"`
	Ownership struct {
		Enabled bool           `toml:"enabled"`
		By      config.OwnerBy `toml:"by"`
		VRRP    map[string]any `toml:"vrrp"`
	} `toml:"ownership"`
}

// byVRRP reports whether VRRP decides which host owns a VIP.
func (c *fleetConfig) byVRRP() bool {
	o := &c.Ownership
	return o.Enabled && len(o.VRRP) > 0 && (o.By == config.ByVRRP || o.By == "" && c.Store.Kind != config.EtcdStore)
}

// OwnsByVRRP reports whether VRRP decides which host owns a VIP, according to the configuration. It
// returns false if a flag or the environment names an etcd cluster.
func (c *Call) OwnsByVRRP() bool {
	if c.NamesEtcd() {
		return false
	}
	conf, err := c.fleetConfig()
	return err == nil && conf.byVRRP()
}

// Node returns this host's name in its fleet.
func (c *Call) Node() string {
	conf, _ := c.fleetConfig() // the daemon reports mistakes in the file
	host, _ := os.Hostname()
	return cmp.Or(conf.Node, host)
}

// fleetConfig reads the part of the configuration that is about etcd. It resolves relative paths
// against the configuration's directory.
func (c *Call) fleetConfig() (fleetConfig, error) {
	conf := fleetConfig{Etcd: config.Default().Etcd}
	if err := readPart(c.Flags.String("config"), &conf); err != nil {
		return conf, err
	}
	for _, path := range []*string{&conf.Etcd.PasswordFile, &conf.Etcd.CAFile, &conf.Etcd.CertFile, &conf.Etcd.KeyFile} {
		*path = c.besideConfig(*path)
	}
	return conf, nil
}

// EtcdConfig returns etcd's client configuration. Flags override the file's settings.
func (c *Call) EtcdConfig() (client.Config, error) {
	file := c.Flags.String("config")
	said, err := c.fleetConfig()
	absent, named := errors.Is(err, fs.ErrNotExist) && file == config.DefaultFile, c.Flags.String("etcd") != ""
	switch {
	case absent && !named:
		return client.Config{}, fmt.Errorf("%q needs etcd, but there is no config at %s with etcd's address: set --etcd URL,... or VIPCTL_ETCD", c.verbText(), file)
	case err != nil && !absent && !named:
		return client.Config{}, fmt.Errorf("looking for etcd in the daemon's config: %v (or set --etcd)", err)
	case err != nil && !absent:
		c.Note("%v; etcd settings without a flag have their defaults", err)
		said.Etcd = config.Default().Etcd
	case !named && said.Store.Kind != config.EtcdStore && said.byVRRP():
		return client.Config{}, fmt.Errorf("%q needs etcd, but %s selects VRRP. \"vipctl get vips\" shows the owners; \"vipctl vip move\" and \"vipctl node standby\" move VIPs to another host", c.verbText(), file)
	case !named && said.Store.Kind != config.EtcdStore:
		return client.Config{}, fmt.Errorf("%q needs etcd, but %s reads services from files (store.kind): set --etcd URL,... or VIPCTL_ETCD", c.verbText(), file)
	}
	conf, flagged := client.Config(said.Etcd), false
	if named {
		conf.Endpoints, flagged = nil, true
		for url := range strings.SplitSeq(c.Flags.String("etcd"), ",") {
			conf.Endpoints = append(conf.Endpoints, strings.TrimSpace(url))
		}
	}
	for name, field := range map[string]*string{
		"prefix": &conf.Prefix, "user": &conf.Username, "password-file": &conf.PasswordFile,
		"ca-file": &conf.CAFile, "cert-file": &conf.CertFile, "key-file": &conf.KeyFile,
	} {
		if c.Flags.IsSet(name) { // an empty flag removes the value in the file
			*field, flagged = c.Flags.String(name), true
		}
	}
	switch err := conf.Check(); {
	case err != nil && flagged:
		return conf, WrongUse("invalid settings for etcd (flags, environment, and [etcd] in %s): %v", file, err)
	case err != nil:
		return conf, fmt.Errorf("invalid settings in [etcd] of %s: %w", file, err)
	}
	return conf, nil
}
