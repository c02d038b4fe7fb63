// Package wake tells loops to look again. It carries no values: whoever is woken looks at what there is now.
package wake
