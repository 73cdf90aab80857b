"""One rack of the network, packet by packet: NICs, a switch with a shared buffer, pauses, marks, retransmission.

Time goes in slots: one slot is what a NIC needs for one packet. State is arrays over flows and over ports, so a slot
costs the same few dozen numpy calls however many ports are busy. There is no heap of events: at the rates of a rack
something happens in each slot.
"""
