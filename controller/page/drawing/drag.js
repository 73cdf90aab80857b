// A pointer on a canvas: a press that stays where it is is a click, one that goes further a drag.

const FAR = 4; // pixels that a hand may tremble

/**
 * `dragged`: by how many pixels since the last call. `pointed`: wherever the pointer is now. `left`: when it is gone.
 * @param {HTMLCanvasElement} canvas
 * @param {{ dragged: (dx: number, dy: number) => void, pointed: (event: PointerEvent, isDragging: boolean) => void,
 *   clicked: (event: PointerEvent) => void, left: () => void }} handlers
 */
export function usePointer(canvas, { dragged, pointed, clicked, left }) {
  /** @type {{ x: number, y: number, far: boolean } | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, far: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      drag.far ||= Math.hypot(dx, dy) > FAR;
      if (drag.far) {
        [drag.x, drag.y] = [event.clientX, event.clientY];
        dragged(dx, dy);
      }
    }
    pointed(event, Boolean(drag?.far));
  });
  canvas.addEventListener("pointerup", (event) => {
    const isClick = drag && !drag.far;
    drag = null;
    if (isClick) clicked(event);
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", left);
}
