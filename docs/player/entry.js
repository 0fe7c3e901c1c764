// What the player uses of three.js; `npm run build` makes three.min.js of it.
export {
  BackSide, BoxGeometry, BufferAttribute, BufferGeometry, CapsuleGeometry, Color, ColorManagement, ConeGeometry,
  CylinderGeometry, DirectionalLight, DoubleSide, FrontSide, Group, HemisphereLight, LinearSRGBColorSpace, Mesh,
  MeshBasicMaterial, MeshLambertMaterial, PerspectiveCamera, PlaneGeometry, Quaternion, Scene, ShaderMaterial,
  SphereGeometry, Vector3, WebGLRenderer,
} from "three";
export { OrbitControls } from "three/examples/jsm/controls/OrbitControls.js";
export { toCreasedNormals } from "three/examples/jsm/utils/BufferGeometryUtils.js";
