package convert

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// kubernetes is a set of manifests that are being converted.
type kubernetes struct {
	*draft
	services []yamlNode
	// slices and endpoints hold each service's EndpointSlices and Endpoints, by namespace and name.
	slices, endpoints map[string][]yamlNode
	known             map[string]bool
}

// kubernetesAnswers returns notes about Service fields that have no equivalent in vipd. Fields with
// an empty note are either converted or matter only to the cluster.
func kubernetesAnswers() []answer {
	return []answer{
		{"spec", "type ports clusterIP clusterIPs externalIPs loadBalancerIP sessionAffinity sessionAffinityConfig externalTrafficPolicy " +
			"internalTrafficPolicy publishNotReadyAddresses trafficDistribution loadBalancerSourceRanges externalName ipFamilies " +
			"ipFamilyPolicy allocateLoadBalancerNodePorts loadBalancerClass", ""},
		{"spec", "selector", "vipd does not watch pods: it uses the EndpointSlices in this file. If endpoints change at run time, add them with \"vipctl " +
			"register\", or let a program write them to etcd"},
		{"spec", "healthCheckNodePort", "the nearest equivalents are /readyz of [api] http, and withdraw in [vips]"},
		{"port", "name protocol port targetPort nodePort appProtocol", ""},
	}
}

// readKubernetes reads Services, EndpointSlices and Endpoints from YAML or JSON documents, alone or
// in lists.
func readKubernetes(d *draft) error {
	k := &kubernetes{draft: d, slices: map[string][]yamlNode{}, endpoints: map[string][]yamlNode{}, known: map[string]bool{}}
	d.answers = kubernetesAnswers()
	for _, doc := range d.documents() {
		k.object(doc, 0)
	}
	for _, s := range k.services {
		k.service(s)
	}
	for _, objects := range []map[string][]yamlNode{k.slices, k.endpoints} {
		for _, name := range slices.Sorted(maps.Keys(objects)) {
			for _, one := range objects[name] {
				if !k.known[name] {
					k.note(one.line(), "left out: this file has no Service %s", plain(name))
				}
			}
		}
	}
	return nil
}

// key returns an object's namespace and name. The default namespace is "default".
func key(namespace, name string) string { return cmp.Or(namespace, "default") + "/" + name }

// object stores an object in the list of its kind.
func (k *kubernetes) object(n yamlNode, depth int) {
	meta := n.get("metadata")
	namespace, name := meta.get("namespace").text(), meta.get("name").text()
	switch kind := n.get("kind").text(); {
	case kind == "Service":
		k.services = append(k.services, n)
		k.known[key(namespace, name)] = true
	case kind == "EndpointSlice":
		id := key(namespace, meta.get("labels", "kubernetes.io/service-name").text())
		k.slices[id] = append(k.slices[id], n)
	case kind == "Endpoints":
		k.endpoints[key(namespace, name)] = append(k.endpoints[key(namespace, name)], n)
	case strings.HasSuffix(kind, "List") && depth < maxDepth:
		for _, item := range n.get("items").list() {
			if item.get("kind").text() == "" { // in a list of one kind, an item may omit its kind
				k.note(item.line(), "left out: the object has no kind; print it with \"kubectl get -o yaml\"")
				continue
			}
			k.object(item, depth+1)
		}
	case kind == "":
		k.note(max(1, n.line()), "left out: not a Kubernetes object, because it has no kind")
	default:
		k.note(n.line(), "left out: kind %s has no equivalent; only Service, EndpointSlice and Endpoints are converted", plain(kind))
	}
}

// side is one half of a Service: its cluster addresses or its external addresses. Each half has its
// own traffic policy.
type side struct {
	name string
	vips []yamlNode
	// policy is the traffic policy. ranges lists the client networks that may connect.
	policy, ranges yamlNode
	// nodePorts reports whether the node ports belong to this side.
	nodePorts bool
}

// service creates services from a Service. Cluster addresses and external addresses get separate
// services if their traffic policies differ. Groups of ports with different endpoints also get
// separate services.
func (k *kubernetes) service(n yamlNode) {
	meta, spec := n.get("metadata"), n.get("spec")
	name := meta.get("name").text()
	if namespace := meta.get("namespace").text(); namespace != "" && namespace != "default" {
		name = namespace + "-" + name
	}
	switch {
	case spec.get("type").text() == "ExternalName":
		k.note(spec.get("externalName").line(), "left out: a DNS name has no VIP; vipd serves only addresses")
		return
	case spec.get("clusterIP").text() == "None":
		k.note(spec.get("clusterIP").line(), "left out: a headless Service has no VIP, and its clients connect to the endpoints themselves")
		return
	}
	for _, field := range spec.keys() {
		k.answer(field.line(), "spec", field.text())
	}
	groups := k.groups(n)
	for _, each := range k.sides(n) {
		for _, group := range groups {
			k.write(n, name+each.name, each, group)
		}
	}
}

// sides splits a Service by its addresses. Halves with the same policy become one side.
func (k *kubernetes) sides(n yamlNode) []side {
	spec := n.get("spec")
	kind := spec.get("type").text()
	inner := side{vips: spec.get("clusterIPs").list(), policy: spec.get("internalTrafficPolicy")}
	if ip := spec.get("clusterIP"); len(inner.vips) == 0 && ip.text() != "" {
		inner.vips = []yamlNode{ip}
	}
	outer := side{name: "-external", vips: spec.get("externalIPs").list(), policy: spec.get("externalTrafficPolicy"), nodePorts: true,
		ranges: spec.get("loadBalancerSourceRanges")}
	if ip := spec.get("loadBalancerIP"); ip.text() != "" {
		outer.vips = append(outer.vips, ip)
	}
	for _, ingress := range n.get("status", "loadBalancer", "ingress").list() {
		if ip := ingress.get("ip"); ip.text() != "" {
			outer.vips = append(outer.vips, ip)
		} else {
			k.note(ingress.line(), "left out: a VIP must be an address, but this is a name")
		}
	}
	if (kind == "LoadBalancer" || kind == "NodePort") && outer.policy.text() != "Local" {
		k.note(n.line(), "snat = \"auto\" replaces the client's address only if replies would bypass this node; set \"always\" to always replace it, as kube-proxy does")
	}
	inner.vips, outer.vips = unique(inner.vips), unique(outer.vips)
	wanted := len(outer.vips) > 0 || kind == "NodePort" || kind == "LoadBalancer"
	isLocal := func(s side) bool { return s.policy.text() == "Local" }
	switch {
	case !wanted:
		return []side{inner}
	case len(inner.vips) == 0:
		outer.name = ""
		return []side{outer}
	case len(outer.vips) == 0 || isLocal(inner) == isLocal(outer) && len(outer.ranges.list()) == 0:
		if len(outer.vips) == 0 && isLocal(inner) != isLocal(outer) {
			k.note(outer.policy.line(), "in vipd, node ports use the locality of the VIP; if they need this policy, write them as a service with another VIP")
		}
		inner.vips, inner.nodePorts = unique(append(inner.vips, outer.vips...)), true
		return []side{inner}
	}
	return []side{inner, outer}
}

// unique removes duplicate addresses.
func unique(all []yamlNode) []yamlNode {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(n yamlNode) bool {
		repeated := seen[n.text()]
		seen[n.text()] = true
		return repeated
	})
}

// write adds a service with the VIPs in half, and with the ports and endpoints in group.
func (k *kubernetes) write(n yamlNode, name string, half side, group *portGroup) {
	spec := n.get("spec")
	s := k.newService(n.line(), name)
	for _, ip := range half.vips {
		if addr, err := parseAddr(ip.text()); err == nil {
			s.vips = append(s.vips, listElement{value: addr.String(), line: ip.line()})
		} else {
			k.note(ip.line(), "left out: %v", err)
		}
	}
	if len(s.vips) == 0 {
		for _, addr := range k.wildcard {
			s.vips = append(s.vips, listElement{value: addr.String(), line: n.line()})
		}
	}
	if len(s.vips) == 0 {
		k.disable(s, n.line(), "the Service has no address in this file: set --vip, or print the Service from the cluster with \"kubectl get -o yaml\"")
	}
	group.writePorts(s, half.nodePorts)
	group.writeEndpoints(s)
	if len(group.endpoints) == 0 {
		k.note(n.line(), "no EndpointSlice of this Service has a usable endpoint; print both: \"kubectl get services,endpointslices -o yaml\"")
	}
	if affinity := spec.get("sessionAffinity"); affinity.text() == "ClientIP" {
		s.set(affinity.line(), "affinity", "client_ip")
		timeout := spec.get("sessionAffinityConfig", "clientIP", "timeoutSeconds")
		if t := number(timeout.text()); t > 0 {
			s.set(timeout.line(), "affinity_timeout", seconds(time.Duration(t)*time.Second))
		} else {
			s.settings = defaulted(s.settings, "affinity_timeout", "3h")
		}
	}
	if ranges := half.ranges.list(); len(ranges) > 0 {
		var networks []string
		for _, r := range ranges {
			networks = append(networks, strings.TrimSpace(r.text()))
		}
		if allowed, ok := parseNetworks(networks); ok {
			k.limit(s, half.ranges.line(), allowed)
		} else {
			k.disable(s, half.ranges.line(), "a source range is not a network, and without it the service would be open to all")
		}
		k.note(half.ranges.line(), "source_ranges also applies to external addresses and node ports; in Kubernetes, it applies only to the load balancer's addresses")
	}
	k.locality(s, n, half, group)
}

// locality sets the endpoints' locality from the Service's traffic policy, its traffic
// distribution, or its endpoints' hints.
func (k *kubernetes) locality(s *service, n yamlNode, half side, group *portGroup) {
	distribution := n.get("spec", "trafficDistribution")
	topology := n.get("metadata", "annotations", "service.kubernetes.io/topology-mode")
	hint, elsewhere := group.hints()
	switch {
	case half.policy.text() == "Local":
		s.set(half.policy.line(), "locality", "node_only")
	case distribution.text() == "PreferSameNode":
		s.set(distribution.line(), "locality", "prefer_node")
	case distribution.text() == "PreferClose" || distribution.text() == "PreferSameZone":
		s.set(distribution.line(), "locality", "prefer_zone")
	case strings.EqualFold(topology.text(), "auto"):
		s.set(topology.line(), "locality", "prefer_zone")
	case hint > 0:
		s.set(hint, "locality", "prefer_zone")
	}
	if elsewhere > 0 {
		k.note(elsewhere, "locality uses the endpoint's own zone; a hint for another zone has no equivalent")
	}
}
