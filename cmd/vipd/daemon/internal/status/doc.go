// Package status says how this node is at one moment: what the API answers, what metrics and the fleet are told, and whether it is
// ready.
//
// It reads what the parts of the daemon have last published (Sources), and owns and changes nothing. A View is made for each
// question, so that what one answer says of services, frontends and the mode is of the same moment; counts are read when they
// are first asked for, as that may cost more than all the rest.
package status
