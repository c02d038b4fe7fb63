package main

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/doctor"
	"vipd/dataplane/resolve"
	"vipd/store/statedir"
	"vipd/store/tomlfile"
)

// localDefinitions holds the definitions in a file or directory, and the problems found in them.
type localDefinitions struct {
	place string
	// main is the parsed file. It is nil if place is a directory or can't be parsed.
	main     *tomlfile.Document
	services snap.Map[balancer.Name, *balancer.Service]
	vips     snap.Map[netip.Addr, *balancer.VIP]
	// config is the daemon's configuration in the file. Missing settings have their defaults.
	config config.Config
	// resolved holds the results of lookups. Only lookUp fills it.
	resolved snap.Map[balancer.LookupID, *balancer.Resolution]
	// problems lists all problems found, sorted by file and line.
	problems []balancer.Problem
}

// readDefinitions reads a configuration file with its services and [store].path, a services file,
// or a directory of services files. It returns an error only if place is missing or inaccessible.
func readDefinitions(place string) (*localDefinitions, error) {
	if _, err := os.Stat(place); err != nil {
		return nil, unreadable(place, err)
	}
	return definitionsOf(place, tomlfile.Load(place)), nil
}

// definitionsOf returns the definitions that were read from place. If place is a file, they include
// the daemon's configuration.
func definitionsOf(place string, read tomlfile.Result) *localDefinitions {
	d := &localDefinitions{place: place, main: read.Main, services: read.Snapshot.Services, config: config.Default(), problems: read.Snapshot.Problems}
	if read.Main != nil {
		var more []balancer.Problem
		d.config, more = config.Decode(read.Main)
		d.problems = slices.Concat(d.problems, more, tomlfile.Emptied(read.Main, statedir.New(d.config.StateDir, func() {})))
		if isConfig(read.Main) {
			d.problems = append(d.problems, d.config.Unheld(read.Snapshot.VIPs, read.Snapshot.Pools)...)
		}
	}
	d.vips = read.Snapshot.VIPs
	d.sortProblems()
	return d
}

// isConfig reports whether a file contains sections of the daemon configuration. If so, missing
// sections have their defaults.
func isConfig(doc *tomlfile.Document) bool {
	for section := range doc.Tree() {
		if section != "services" && section != "vips" && section != "defaults" {
			return true
		}
	}
	return false
}

// sortProblems sorts the problems by file and line, and removes duplicates, because two readers may
// find the same problem.
func (d *localDefinitions) sortProblems() {
	slices.SortStableFunc(d.problems, func(a, b balancer.Problem) int {
		return cmp.Or(
			cmp.Compare(a.Origin.File, b.Origin.File), cmp.Compare(a.Origin.Line, b.Origin.Line),
			cmp.Compare(a.Service, b.Service), cmp.Compare(a.Field, b.Field), cmp.Compare(a.PortText(), b.PortText()),
		)
	})
	d.problems = slices.Compact(d.problems)
}

// compile compiles the definitions for a node with this host's addresses, and returns the
// frontends. It adds the problems that the daemon would report. If node is "", it uses the
// configured node name or the host name.
func (d *localDefinitions) compile(node string, can balancer.Capabilities) []*balancer.Frontend {
	env := balancer.Env{
		Node: cmp.Or(node, d.config.Node), Zone: d.config.Zone, Local: d.localAddresses(),
		NodePorts: d.config.NodePorts.Addresses, Allowed: d.config.Addresses.Allowed, AllowedEndpoints: d.config.Addresses.AllowedEndpoints,
		Capabilities: can,
	}
	if env.Node == "" {
		env.Node, _ = os.Hostname() // without a host name, no endpoint is on this node
	}
	desired := new(balancer.Compiler).Next(env, balancer.Inputs{Services: d.services, VIPs: d.vips, Resolved: d.resolved}, time.Now())
	for _, problems := range desired.Problems.All() {
		d.problems = append(d.problems, *problems...)
	}
	d.sortProblems()
	var frontends []*balancer.Frontend
	for _, f := range desired.Frontends.All() {
		frontends = append(frontends, f)
	}
	return frontends
}

// lookupTime limits how long all lookups of a file may take together. maxLookups is the maximum
// number of simultaneous lookups.
const (
	lookupTime = 10 * time.Second
	maxLookups = 64
)

// lookUp looks up the endpoints' DNS names until ctx is done. It does not run programs that list
// endpoints, but returns the names of the services that use them.
func (d *localDefinitions) lookUp(ctx context.Context) (unrun []string) {
	client := resolve.New(resolve.Options{Servers: func() []string { return d.config.Resolver.Servers }})
	var running sync.WaitGroup
	var mu sync.Mutex // guards d.resolved
	free := make(chan struct{}, maxLookups)
	for name, s := range d.services.All() {
		for l := range balancer.LookupsOf(s, &balancer.Inputs{Services: d.services}) {
			if l.Kind == balancer.ProgramLookup {
				unrun = append(unrun, string(name))
				continue
			}
			running.Go(func() {
				free <- struct{}{}
				defer func() { <-free }()
				answer := client.Answer(ctx, l, nil)
				mu.Lock()
				defer mu.Unlock()
				d.resolved = d.resolved.Set(balancer.LookupID{Service: name, Lookup: l}, &answer.Resolution)
			})
		}
	}
	running.Wait()
	return unrun
}

// localAddresses returns the host's own addresses. It omits VIPs that a running vipd holds on its
// own device, or on lo if the kernel can't create that device.
func (d *localDefinitions) localAddresses() (local []netip.Addr) {
	vips := map[netip.Addr]bool{}
	for _, s := range d.services.All() {
		for _, v := range s.VIPs {
			vips[v] = true
		}
	}
	interfaces, _ := doctor.ThisHost().Interfaces() // without the host's addresses, node ports have no frontends
	for _, i := range interfaces {
		holds := i.Name == d.config.Addresses.Interface || slices.ContainsFunc(i.Addrs, netip.Addr.IsLoopback)
		for _, addr := range i.Addrs {
			held := vips[addr] && holds
			if !addr.IsLoopback() && !addr.IsLinkLocalUnicast() && !held {
				local = append(local, addr)
			}
		}
	}
	slices.SortFunc(local, netip.Addr.Compare)
	return slices.Compact(local)
}

// covers reports whether the definitions include the content of file. If so, the daemon would
// remove a service that it read from file and that is missing from the definitions.
func (d *localDefinitions) covers(file string) bool {
	places := []string{d.place}
	if d.config.Store.Path != "" {
		places = append(places, d.config.Store.Path)
	}
	return slices.ContainsFunc(places, func(place string) bool {
		return cli.SamePlace(place, file) || cli.SamePlace(place, filepath.Dir(file))
	})
}
