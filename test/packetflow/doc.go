// Package packetflow compares every mode with the tables in flows.md, which list the result for
// each client by the client's location and by policy. The tables are written for people. Real
// packets are sent in namespaces with the same addresses. userspace and iptables mode run
// everywhere (once through a node that drops unrequested packets), ipvs mode only on kernels with
// IPVS, such as the guest's. In iptables mode, the rules in the kernel must equal the output of
// vipctl plan.
//
// A new mode needs only a line in modes. The tables have their own package because they belong to
// all modes.
package packetflow
