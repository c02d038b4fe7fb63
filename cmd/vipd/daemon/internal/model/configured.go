package model

import (
	"cmp"
	"reflect"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/store"
	"vipd/store/etcd"
)

// Configure takes what the fleet says of this node.
func (m *Model) Configure(nc etcd.NodeConfig) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.configuredLocked()
	m.nodeConfig = nc
	if m.configuredLocked().Mode != before.Mode {
		m.chooseAgain()
	}
	m.Kick()
}

// ModeChanged holds a token when the configuration says something else about the mode.
func (m *Model) ModeChanged() <-chan struct{} { return m.modeChanged }

// chooseAgain has the mode be chosen again.
func (m *Model) chooseAgain() {
	select {
	case m.modeChanged <- struct{}{}:
	default:
	}
}

// Configured returns the configuration: the file as it was last read without errors, and over it what the fleet says of
// this node.
func (m *Model) Configured() config.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.configuredLocked()
}

// configuredLocked is configured. The mode of the command line wins.
func (m *Model) configuredLocked() config.Config {
	c, said := m.fileConfig, m.nodeConfig
	if said.Zone != "" {
		c.Zone = said.Zone
	}
	if said.Mode != "" && m.o.Mode == "" {
		c.Mode = config.ModeName(said.Mode)
	}
	return c
}

// ConfiguredBy says who asks for the mode of Configured.
func (m *Model) ConfiguredBy() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ModeBy(m.o.ConfigFile, m.o.Mode, m.nodeConfig.Mode)
}

// ModeBy says who asks for the mode: the command line, if that has one, else what the fleet says of this node, else file.
func ModeBy(file string, commandLine config.ModeName, fleet string) string {
	switch {
	case commandLine != "":
		return "configured by --mode"
	case fleet != "":
		return "set in etcd by vipctl node set"
	}
	return "configured in " + file
}

// reconfigure takes the daemon's own part of the configuration. What can change while running does; a part with errors keeps
// what was there.
func (m *Model) reconfigure(settings store.Document) {
	c, problems := config.Decode(settings)
	usable := config.Unusable(problems) == nil
	if usable {
		c.Mode, c.Node = cmp.Or(m.o.Mode, c.Mode), cmp.Or(c.Node, m.o.Config.Node)
		problems = append(problems, m.needRestart(c)...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fileErrors = problems
	if !usable {
		return
	}
	if c.Mode != m.fileConfig.Mode || c.StrictMode != m.fileConfig.StrictMode {
		m.chooseAgain()
	}
	m.fileConfig = c
	m.o.Reread(c)
}

// needRestart reports what was changed in the configuration but is in use as it was when vipd started.
func (m *Model) needRestart(c config.Config) []balancer.Problem {
	var problems []balancer.Problem
	was, is := reflect.ValueOf(m.o.Config), reflect.ValueOf(c)
	for i := range is.NumField() {
		name := is.Type().Field(i).Tag.Get("toml")
		switch name {
		case "mode", "strict_mode", "node", "zone", "node_ports", "defaults", "services", "vips", "health": // followed while running
			continue
		}
		if name == "store" && m.o.Config.Store.Kind == c.Store.Kind {
			continue
		}
		if name == "addresses" {
			a, b := m.o.Config.Addresses, c.Addresses
			a.Allowed, b.Allowed = nil, nil
			if reflect.DeepEqual(a, b) {
				continue
			}
		}
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: m.o.ConfigFile}, Field: name,
				Text: "has changed, which takes a restart of vipd to come into effect",
			})
		}
	}
	return problems
}
